"""Conversion of configs, optimizers and policies to JSON and back.

A description is a frozen dataclass, so its class and fields define it. Fields
have numbers, names, other descriptions, initializers and optimizers in Keras'
form, and functions by their registered names. Features that share a
TableConfig, and tables that share a Keras optimizer, share it again after
loading.
"""

from __future__ import annotations

import dataclasses
import inspect
import numbers
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfembed import config, errors, initializers, optimizers, policies
from tfembed.config.custom_combiner import as_combiner, is_custom
from tfembed.dynamic_embedding.keras.layer_config import name_of, object_of
from tfembed.keras.table_optimizers import described, keras_optimizer_of
from tfembed.optimizers.interface import variable_of

__all__ = ["from_json", "to_json"]

_CLASSES: dict[str, Any] = {
    "RowInitializer": initializers.RowInitializer,
    **{name: getattr(config, name) for name in config.__all__},
    **{name: getattr(policies, name) for name in policies.__all__},
    **{name: getattr(optimizers, name) for name in optimizers.__all__},
}
_TENSORFLOWS = tuple(
    getattr(tf.tpu.experimental.embedding, name)
    for name in config.__all__
    # Older releases of TensorFlow lack some classes.
    if name != "CustomCombiner" and hasattr(tf.tpu.experimental.embedding, name)
)


def to_json(value: Any) -> Any:
    """Converts a structure of descriptions, tfembed's or TensorFlow's, to JSON.

    Raises:
      tfembed.errors.ArgumentError: a value that cannot be saved, such as a
        function that is not registered with Keras.
    """
    tables = _Known()
    encoded = _encode(value, "feature_configs", tables)
    # A table may refer to an optimizer, but not to a table.
    written = [_table(table, tables.optimizers) for table in tables]
    return {
        "value": encoded,
        "tables": written,
        "optimizers": [
            keras.optimizers.serialize(o) for o in tables.optimizers
        ],
    }


def from_json(encoded: Any) -> Any:
    """Undoes `to_json`; TensorFlow's descriptions become tfembed's.

    Raises:
      tfembed.errors.ArgumentError: an unknown class or function.
    """
    tables = _Known()
    tables.optimizers = [
        described(keras.optimizers.deserialize(one))
        for one in encoded.get("optimizers", [])
    ]
    written = [_decode(table, tables) for table in encoded["tables"]]
    tables.extend(written)
    return _decode(encoded["value"], tables)


class _Known(list[Any]):
    """The tables of a structure, and the Keras optimizers of its tables."""

    def __init__(self, optimizers: list[Any] | None = None) -> None:
        super().__init__()
        self.optimizers: list[Any] = [] if optimizers is None else optimizers


def _encode(value: Any, argument: str, tables: _Known) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool, numbers.Real)):
        return value
    if argument == "learning_rate":
        return _rate(value, argument)
    if isinstance(value, tf.DType):
        return {"dtype": value.name}
    if isinstance(value, tf.TensorShape):
        return {"shape": None if value.rank is None else value.as_list()}
    if isinstance(value, dict):
        pairs = [[k, _encode(v, argument, tables)] for k, v in value.items()]
        return {"dict": pairs}
    if type(value) in (list, tuple):
        items = [_encode(item, argument, tables) for item in value]
        return {type(value).__name__: items}
    if _class_name(value) == "TableConfig":
        return {"table": _index(value, tables)}
    if (optimizer := keras_optimizer_of(value)) is not None:
        return {"keras": _index(optimizer, tables.optimizers)}
    if _is_description(value):
        return _description(_ours(value), tables)
    if (initializer := _as_keras_initializer(value)) is not None:
        return {"initializer": keras.initializers.serialize(initializer)}
    if not hasattr(value, "__name__"):
        raise errors.ArgumentError(
            f"`{argument}` of a layer that is saved must be a number, a name, a "
            "description, an initializer of Keras or TensorFlow, or a registered "
            f"function; got {value!r}."
        )
    return {"function": name_of(value, argument)}


def _rate(rate: Any, argument: str) -> Any:
    """Converts a schedule or function to JSON, as Keras optimizers do."""
    if (variable := variable_of(rate)) is not None:
        return float(tf.convert_to_tensor(variable))
    name = getattr(rate, "__name__", "")
    registered = keras.saving.get_registered_name(rate) if name else None
    if name and keras.saving.get_registered_object(registered) is rate:
        return {"function": name_of(rate, argument)}
    if name and name != "<lambda>":  # Keras warns of lambdas.
        warnings.warn(
            f"The learning rate {name} is saved by its name. To load it, put "
            "@keras.saving.register_keras_serializable() above it, or call "
            f"load_model(..., custom_objects={{'{name}': {name}}}).",
            stacklevel=2,
        )
    return {"rate": keras.saving.serialize_keras_object(rate)}


def _decode(encoded: Any, tables: _Known) -> Any:
    if not isinstance(encoded, dict):
        return encoded
    if "class_name" in encoded:
        fields = {k: _decode(v, tables) for k, v in encoded["fields"].items()}
        return _class(encoded["class_name"])(**fields)
    ((kind, value),) = encoded.items()
    if kind == "dict":
        return {key: _decode(item, tables) for key, item in value}
    if kind in ("list", "tuple"):
        items = [_decode(item, tables) for item in value]
        return items if kind == "list" else tuple(items)
    return _DECODE[kind](value, tables)


_DECODE: dict[str, Any] = {
    "dtype": lambda value, _: tf.as_dtype(value),
    "shape": lambda value, _: tf.TensorShape(value),
    "keras": lambda value, tables: tables.optimizers[value],
    "table": lambda value, tables: tables[value],
    "function": lambda value, _: object_of(value, "a function"),
    "rate": lambda value, _: keras.saving.deserialize_keras_object(value),
    "initializer": lambda value, _: keras.initializers.deserialize(value),
}


def _class(name: str) -> Any:
    if name not in _CLASSES:
        raise errors.ArgumentError(
            f"A saved layer names the description {name!r}; this release has "
            f"{sorted(_CLASSES)}. Was the model saved by a newer one?"
        )
    return _CLASSES[name]


def _class_name(value: Any) -> str:
    return type(value).__name__


def _is_description(value: Any) -> bool:
    return (
        type(value) is _CLASSES.get(_class_name(value))
        or isinstance(value, _TENSORFLOWS)
        or is_custom(value)
        or _is_tensorflows_optimizer(value)
    )


def _is_tensorflows_optimizer(value: Any) -> bool:
    theirs = getattr(tf.tpu.experimental.embedding, _class_name(value), None)
    return theirs is type(value) and _class_name(value) in optimizers.__all__


def _ours(value: Any) -> Any:
    if is_custom(value):
        return as_combiner(value)
    if _is_tensorflows_optimizer(value):
        return optimizers.from_tensorflow(value)
    return value


def _description(value: Any, tables: _Known, **replaced: Any) -> dict[str, Any]:
    """Converts a description to JSON; `replaced` fields have other values."""
    name = _class_name(value)
    fields = {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(_class(name))
        # TensorFlow's older ones lack some.
        if field.init and hasattr(value, field.name)
    }
    return {
        "class_name": name,
        "fields": {
            field: _encode(content, field, tables)
            for field, content in {**fields, **replaced}.items()
        },
    }


def _index(one: Any, known: list[Any]) -> int:
    """Returns the index of an object, by identity; adds one that is new."""
    for i, other in enumerate(known):
        if other is one:
            return i
    known.append(one)
    return len(known) - 1


def _table(table: Any, optimizers: list[Any]) -> dict[str, Any]:
    known = _Known(optimizers)
    if table.vocabulary_size is not None:
        return _description(table, known)
    # Numbers, arrays, names and functions become an equivalent initializer.
    row_initializer = initializers.row_initializer(
        table.initializer, table.dim, table.known_fan_in()
    )
    return _description(table, known, initializer=row_initializer)


def _as_keras_initializer(value: Any) -> Any:
    """Returns Keras' initializer for a Keras or TensorFlow one, else None."""
    if isinstance(value, keras.initializers.Initializer):
        return value
    kind = getattr(keras.initializers, _class_name(value), None)
    module = type(value).__module__.partition(".")[0]
    if kind is None or module not in ("tensorflow", "tf_keras"):
        return None
    known = inspect.signature(kind).parameters
    return kind(**{k: v for k, v in value.get_config().items() if k in known})
