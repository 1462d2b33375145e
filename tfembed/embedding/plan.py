"""The plan of an embedding: its features, tables and update rules."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import threading
from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.config.table_config import check_table_options
from tfembed.embedding.features.input_values import (
    TENSORS,
    as_ids,
    as_weights,
    with_tensors,
)
from tfembed.optimizers.interface import is_schedule
from tfembed.tables.arguments import check_name
from tfembed.units import counted

__all__ = [
    "EmbeddingPlan",
    "MAKING",
    "PlanNames",
    "feature_paths",
    "make_plan",
]


@dataclasses.dataclass(frozen=True, eq=False)
class EmbeddingPlan:
    """The flat form of a structure of FeatureConfigs.

    Attributes:
      feature_config: the given structure.
      features: the FeatureConfigs, in the order of `tf.nest.flatten`.
      paths: the features' names in errors.
      tables: the TableConfigs, in the order of their first feature.
      table_ids: per feature, its table's index in `tables`.
      optimizers: per table, its update rule or None.
    """

    feature_config: Any
    features: tuple[Any, ...]
    paths: tuple[str, ...]
    tables: tuple[Any, ...]
    table_ids: tuple[int, ...]
    optimizers: tuple[optimizers.Optimizer | None, ...]

    @functools.cached_property
    def dims(self) -> list[int]:
        """The width of each table."""
        return [table.dim for table in self.tables]

    @functools.cached_property
    def feature_dims(self) -> list[int]:
        """The width of each feature's table."""
        return [self.dims[table] for table in self.table_ids]

    def dim(self, feature: int) -> int:
        """Returns the width of a feature's table."""
        return self.feature_dims[feature]

    def subset(self, tables: Sequence[int]) -> EmbeddingPlan:
        """Returns the plan of some tables and their features, in a list."""
        if len(tables) == len(self.tables):
            return self
        indices = [i for i, t in enumerate(self.table_ids) if t in tables]
        return EmbeddingPlan(
            feature_config=[self.features[i] for i in indices],
            features=tuple(self.features[i] for i in indices),
            paths=tuple(self.paths[i] for i in indices),
            tables=tuple(self.tables[i] for i in tables),
            table_ids=tuple(
                list(tables).index(self.table_ids[i]) for i in indices
            ),
            optimizers=tuple(self.optimizers[i] for i in tables),
        )

    def flatten(self, values: Any, what: str) -> list[Any]:
        """Returns the leaves of `values`, which have the features' structure.

        Raises:
          ValueError, TypeError: another structure; the errors of `tf.nest`.
        """
        try:
            tf.nest.assert_same_structure(self.feature_config, values)
        except (ValueError, TypeError) as error:
            raise type(error)(
                f"{what} must have the structure of feature_config. "
                f"{_difference(self.feature_config, values)}{error}"
            ) from None
        return tf.nest.flatten(values)

    def flatten_inputs(
        self, values: Any, what: Literal["features", "weights"]
    ) -> list[Any]:
        """Returns the leaves of `values`, with arrays and lists as tensors.

        Raises:
          ValueError, TypeError: as `flatten`.
          tfembed.errors.DtypeError: values that cannot be converted.
        """
        try:
            tf.nest.assert_same_structure(self.feature_config, values)
        except (ValueError, TypeError):
            pass  # TensorFlow treats a list of ids as a structure.
        else:
            flat: list[Any] = tf.nest.flatten(values)
            if all(map(isinstance, flat, itertools.repeat(TENSORS))):
                return flat
        convert = as_ids if what == "features" else as_weights
        return self.flatten(
            with_tensors(self.feature_config, values, convert), what
        )

    def flatten_shapes(self, shapes: Any, what: str) -> list[Any]:
        """Flattens shapes, which may also be given as a flat list or tuple.

        Raises:
          ValueError, TypeError: another structure; the errors of `tf.nest`.
        """
        flat = tf.nest.flatten(shapes)
        if isinstance(shapes, (list, tuple)) and len(flat) == len(
            self.features
        ):
            return flat
        return self.flatten(shapes, what)

    def pack(self, values: Sequence[Any]) -> Any:
        """Packs `values`, one per feature, into the features' structure."""
        return tf.nest.pack_sequence_as(self.feature_config, values)


def make_plan(feature_config: Any, optimizer: Any) -> EmbeddingPlan:
    """Checks the configs, and sets tables' names and optimizers that are None.

    As TensorFlow does, it writes the names and the optimizers into the
    TableConfigs, after all of them were checked.

    Args:
      feature_config: a FeatureConfig or a `tf.nest` structure of them.
      optimizer: the optimizer of tables that have none, or None.

    Raises:
      tfembed.errors.ArgumentError: no features, an unknown optimizer, or a name
        used twice.
      tfembed.errors.UnsupportedError: an option that is not in this release.
    """
    features = tuple(tf.nest.flatten(feature_config))
    for feature in features:
        if not hasattr(feature, "max_sequence_length"):
            raise errors.ArgumentError(
                "`feature_config` must be a FeatureConfig or a structure of "
                f"them; got {feature!r}."
            )
    if not features:
        raise errors.ArgumentError("`feature_config` has no features.")
    tables = _distinct([feature.table for feature in features])
    for table in tables:
        check_table_options(table)
    # Checks come first: nothing is written before everything was checked.
    chosen = [
        optimizer if table.optimizer is None else table.optimizer
        for table in tables
    ]
    rules = tuple(
        None if one is None else optimizers.from_tensorflow(one)
        for one in chosen
    )
    names = _names(tables)
    for table, name, rule in zip(tables, names, rules, strict=True):
        if rule is not None:
            _check_fits(rule, table, name)
    for table, name, one in zip(tables, names, chosen, strict=True):
        # tfembed's configs are frozen.
        object.__setattr__(table, "name", name)
        object.__setattr__(table, "optimizer", one)
    return EmbeddingPlan(
        feature_config=feature_config,
        features=features,
        paths=feature_names(feature_config),
        tables=tuple(tables),
        table_ids=tuple(_index(tables, f.table) for f in features),
        optimizers=rules,
    )


def check_all_train(plan: EmbeddingPlan) -> None:
    """Raises tfembed.errors.ArgumentError if a table has no optimizer.

    On a TPU all tables need one, even tables that are never trained.
    """
    for config, rule in zip(plan.tables, plan.optimizers, strict=True):
        if rule is None:
            raise errors.ArgumentError(
                f"{type(rule)} is an unsupported optimizer class under a "
                f"TPUStrategy; table {config.name!r} has no other. Give one to its "
                "TableConfig or to TPUEmbedding: tfembed.SGD(0.0) where it is "
                "never trained."
            )


def _check_fits(rule: optimizers.Optimizer, table: Any, name: str) -> None:
    has_vocabulary = table.vocabulary_size is not None
    rule.check_fits_table(name, has_vocabulary=has_vocabulary)
    _check_rate(rule.learning_rate, name)
    # TensorFlow's TableConfig has no such field.
    if not rule.is_fused and getattr(table, "admission", None) is not None:
        raise errors.ArgumentError(
            f"Table {name!r} admits ids by a policy, which a CustomOptimizer "
            "does not ask: its updates insert all. Leave `admission` out, or "
            "use another optimizer."
        )


def _check_rate(rate: Any, name: str) -> None:
    """Refuses learning rate functions with other arguments than a step."""
    if not callable(rate):
        return
    try:
        inspect.signature(rate).bind(*((0,) if is_schedule(rate) else ()))
    except TypeError:
        raise errors.ArgumentError(
            f"The learning rate of table {name!r} must be a number, a tf.Variable, "
            "a function without arguments, or a schedule, that is a function of "
            f"the step; got {rate!r}, which asks for more."
        ) from None
    except ValueError:  # It has no signature to check.
        return


def _distinct(tables: Sequence[Any]) -> list[Any]:
    """Lists distinct objects; equal configs are different tables."""
    return list({id(table): table for table in tables}.values())


def _index(tables: Sequence[Any], table: Any) -> int:
    return next(i for i, other in enumerate(tables) if other is table)


def _names(tables: Sequence[Any]) -> list[str]:
    names: list[str] = []
    for i, table in enumerate(tables):
        name = f"table_{i}" if table.name is None else table.name
        check_name(name)
        if name in names:
            raise errors.ArgumentError(
                "Tables must have a unique name. Multiple tables with name "
                f"{name} found."
            )
        names.append(name)
    return names


def feature_paths(structure: Any) -> list[str]:
    """Returns the path of each leaf of a structure: keys joined by slashes."""
    keys = tf.__internal__.nest.yield_flat_paths(structure)
    return ["/".join(map(str, path)) for path in keys]


def feature_names(feature_config: Any) -> tuple[str, ...]:
    """Returns the features' names in errors: paths, or a single one's name."""
    return tuple(
        path or feature.name or "the only feature"
        for feature, path in zip(
            tf.nest.flatten(feature_config),
            feature_paths(feature_config),
            strict=True,
        )
    )


def _difference(expected: Any, given: Any) -> str:
    """Describes the paths that only one of two structures has; "" for none."""
    wanted, found = feature_paths(expected), feature_paths(given)
    missing = [path for path in wanted if path not in found]
    added = [path for path in found if path not in wanted]
    text = f"Missing: {missing}. " if missing else ""
    return text + (f"Not among the features: {added}. " if added else "")


# Held while tables are made. It is global, because objects with locks cannot be
# copied.

MAKING = threading.RLock()


# The most table names in the repr of an embedding.
_MOST_TABLES_IN_WORDS = 4


class PlanNames:
    """Base of the embedding classes: TensorFlow's private names for a plan.

    Layers and tests of other libraries read these names.
    """

    _plan: EmbeddingPlan

    @property
    def _feature_config(self) -> Any:
        return self._plan.feature_config

    @property
    def _table_config(self) -> list[Any]:
        return list(self._plan.tables)

    def _in_words(self, tables: Sequence[Any] | None) -> str:
        """Describes features and `tables`; None: tables are not made yet."""
        plan = self._plan
        words = (
            f"{counted(len(plan.features), 'feature')}, "
            f"{counted(len(plan.tables), 'table')}: "
        )
        shown = list(plan.tables)[:_MOST_TABLES_IN_WORDS]
        each = [
            f"'{config.name}' "
            + (
                f"{config.vocabulary_size or 'any ids'} -> [{config.dim}]"
                if tables is None
                else tables[i].in_words()
            )
            for i, config in enumerate(shown)
        ]
        if len(plan.tables) > len(shown):
            each.append(f"{len(plan.tables) - len(shown)} more")
        unmade = ", not made yet" if tables is None else ""
        return words + "; ".join(each) + unmade

    def _variables_of(self, tables: Sequence[Any]) -> dict[str, dict[str, Any]]:
        """Returns the variables by table name, then "parameters" or slot."""
        return {
            config.name: {"parameters": table.parameters, **table.slots}
            for config, table in zip(self._plan.tables, tables, strict=True)
        }
