"""Conversion of keras-rs' configs, and similar ones, to tfembed's."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import tensorflow as tf

from tfembed import config, errors
from tfembed.keras.table_optimizers import described

__all__ = ["as_features", "say_unused"]

# Option -> the values that have no effect in keras-rs either.
_UNUSED = {
    "placement": ("auto", "default_device"),
    "max_ids_per_partition": (256,),
    "max_unique_ids_per_partition": (256,),
    "table_stacking": ("auto", None),
    "update_stats": (False,),
}
_SAID: set[str] = set()


def as_features(feature_configs: Any) -> Any:
    """Replaces keras-rs' features in a structure by tfembed's.

    Tables of equal names and values become one table, since Keras loads
    separate copies of a shared table. Keras optimizers become update rules.

    Raises:
      tfembed.errors.ArgumentError: an output shape that does not fit the table,
        or a value that `tfembed.TableConfig` refuses.
      tfembed.errors.UnsupportedError: an optimizer without an update rule.
    """
    tables: dict[str, tuple[Any, Any]] = {}
    return tf.nest.map_structure(
        lambda one: _feature(one, tables), feature_configs
    )


def say_unused(options: dict[str, Any]) -> None:
    """Warns of options that have no effect here, once per option and process.

    Args:
      options: the options by name; default values cause no warning.
    """
    for name, value in options.items():
        is_asked = not any(value == plain for plain in _UNUSED[name])
        if is_asked and name not in _SAID:
            _SAID.add(name)
            warnings.warn(
                f"`{name}` of keras-rs lays tables out on a TPU's SparseCores, "
                f"and means nothing here; got {value!r}. tfembed keeps tables in "
                "host memory, without limits on the ids of a batch.",
                stacklevel=2,
            )


def _feature(feature: Any, tables: dict[str, tuple[Any, Any]]) -> Any:
    table: Any = getattr(feature, "table", None)
    if not hasattr(table, "embedding_dim"):
        if table is not None and _needs_rule(table.optimizer):
            # tfembed's configs are frozen.
            object.__setattr__(table, "optimizer", described(table.optimizer))
        return feature
    values = table.get_config()
    known = tables.get(table.name)
    if known is None or known[0] != values:
        known = tables[table.name] = (values, _table(table))
    shape, given = tuple(feature.output_shape), tuple(feature.input_shape)
    rank = max(len(given), 2)  # The last dimension of ids is combined.
    if len(shape) != rank or shape[-1] != table.embedding_dim:
        lead = ", ".join(["batch", *map(str, given[1:-1])])
        raise errors.ArgumentError(
            f"`output_shape` of feature '{feature.name}' must be ({lead}, "
            f"{table.embedding_dim}), a row of table '{table.name}' for each "
            f"sample; got {shape}. For sequences, use tfembed.FeatureConfig("
            "max_sequence_length=...)."
        )
    return config.FeatureConfig(known[1], name=feature.name)


def _needs_rule(optimizer: Any) -> bool:
    return isinstance(optimizer, (str, keras.optimizers.Optimizer))


def _table(table: Any) -> Any:
    say_unused(
        {name: getattr(table, name) for name in _UNUSED if hasattr(table, name)}
    )
    return config.TableConfig(
        vocabulary_size=table.vocabulary_size,
        dim=table.embedding_dim,
        initializer=keras.initializers.get(table.initializer),
        optimizer=described(table.optimizer),
        combiner=table.combiner,
        name=table.name,
        fan_in=getattr(table, "fan_in", None),
    )
