"""Training of rows that are sharded over replicas, by any optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import dynamic_embedding, errors, optimizers
from tfembed.embedding import private
from tfembed.embedding.xla.sharded_table import TrainedTable
from tfembed.embedding.xla.stack import StackRows
from tfembed.embedding.xla.taped_shards import TapedShards
from tfembed.foreign_optimizers.keras_family import KerasRows
from tfembed.foreign_optimizers.private import base_of
from tfembed.foreign_optimizers.rules import FusedRule, RowRule
from tfembed.foreign_optimizers.v1_family import V1Rows
from tfembed.foreign_optimizers.v2_family import V2Rows
from tfembed.foreign_optimizers.variable_rows import VariableRows
from tfembed.foreign_optimizers.wrap import wrap
from tfembed.foreign_optimizers.wrapped_optimizer import (
    WrappedOptimizer,
    lasting_name,
)

__all__ = [
    "TapedTraining",
    "Trainings",
    "made_for_all_replicas",
    "rule_of",
    "sort_gradients",
]

# These optimizers do not change rows without a gradient, so their fused rules
# can be used. Others (momentum, decaying means) change all rows of a dense
# variable in a step, so their own update runs.
_MOVE_TOUCHED_ROWS = (optimizers.SGD, optimizers.Adagrad)


class TapedTraining:
    """An optimizer of the tables of one object, and its slots.

    Each owner of rows runs the optimizer's update on them, with gradients that
    the exchange has summed; the optimizer does not sum gradients of tables.

    Args:
      owner: the trackable object that saves slots, as
        `<table>/<optimizer>/<slot>`.
      shards: the sharded tables of the owner.
      optimizer: an optimizer of Keras 3, tf_keras (also `legacy`) or
        tf.compat.v1.train.

    Raises:
      tfembed.errors.UnsupportedError: an optimizer that cannot train single
        rows, or clips gradients; the text says why.
    """

    def __init__(self, owner: Any, shards: TapedShards, optimizer: Any) -> None:
        if type(optimizer).__module__.startswith(dynamic_embedding.__name__):
            raise errors.UnsupportedError(
                "A DynamicEmbeddingOptimizer trains tables in host memory; these "
                "are spread over replicas. Give the optimizer that it was made "
                "of."
            )
        # Keeps the optimizer alive, so that its id is not reused.
        self.optimizer = optimizer
        self._shards = shards
        with shards.strategy.scope():
            self._wrapped = wrap(optimizer)
            _check_clipping(self._wrapped)
            self._rule = rule_of(self._wrapped, optimizer)
        self.name = self._wrapped.name
        starts, labels = _slots_of(self._rule)
        self._slots = [
            [
                shards.new_slot(s, f"{self.name}/{label}", initial)
                for label, initial in zip(labels, starts, strict=True)
            ]
            for s in range(len(shards.stacks))
        ]
        if isinstance(self._rule, VariableRows):
            with shards.strategy.scope():
                self._rule.prepare(shards.values[0])
        for i, variable in enumerate(getattr(self._rule, "state", ())):
            private.track(owner, f"{self.name}/state_{i}", variable)

    def apply(
        self,
        gradients: Mapping[int, tf.IndexedSlices],
        dense: Sequence[tuple[Any, Any]],
    ) -> None:
        """Takes one step, inside of strategy.run.

        Args:
          gradients: table index -> gradient, for tables that have one.
          dense: pairs of a gradient and a dense variable.
        """
        scale = self._wrapped.loss_scale
        if scale:
            gradients = {i: _scaled(g, 1 / scale) for i, g in gradients.items()}
        if isinstance(self._rule, VariableRows):
            self._train_in_place(self._rule, gradients)
        else:
            self._train(self._rule, gradients)
        if dense:
            self._wrapped.apply_dense(dense)
        else:
            self._wrapped.finish()

    def _train(
        self,
        rule: FusedRule | RowRule,
        gradients: Mapping[int, tf.IndexedSlices],
    ) -> None:
        program = self._shards.program
        rows = {
            s: self._shards.read(s, self._slots[s])
            for s in program.stacks_of(list(gradients))
        }
        rate = self._wrapped.learning_rate()
        new = program.train(rule, rows, gradients, rate)
        for s, one in new.items():
            self._assign(s, one)

    def _train_in_place(
        self, rule: VariableRows, gradients: Mapping[int, tf.IndexedSlices]
    ) -> None:
        """Updates whole stacks in place, by TensorFlow's variable kernels."""
        program = self._shards.program
        for s, tables in program.stacks_of(list(gradients)).items():
            own = {table: gradients[table] for table in tables}
            before = self._shards.read(s, self._slots[s])
            rule.update_variables(
                self._shards.values[s],
                self._slots[s],
                program.sum_gradients(s, own),
            )
            if len(tables) < len(self._shards.stacks[s].tables):
                after = self._shards.read(s, self._slots[s])
                self._assign(s, program.merged(s, before, after, tables))

    def _assign(self, s: int, rows: StackRows) -> None:
        self._shards.values[s].assign(rows.values)
        for slot, value in zip(self._slots[s], rows.slots, strict=True):
            slot.assign(value)


class Trainings:
    """The optimizers that have trained the tables of one object."""

    def __init__(self) -> None:
        self._known: dict[int, TapedTraining] = {}

    def of(
        self, owner: Any, shards: TapedShards, optimizer: Any
    ) -> TapedTraining:
        """Finds an optimizer's training, or makes it.

        Args:
          owner, shards, optimizer: as for TapedTraining.

        Raises:
          tfembed.errors.ArgumentError: another optimizer has the same name,
            under which slots are saved.
          tfembed.errors.UnsupportedError: as TapedTraining.
        """
        known = self._known.get(id(optimizer))
        if known is None:
            name = name_of(optimizer)
            if name in (one.name for one in self._known.values()):
                raise errors.ArgumentError(
                    f"Another optimizer named {name!r} trains these tables, and "
                    "slots are saved by that name. Give one of them a `name`."
                )
            known = made_for_all_replicas(
                lambda: TapedTraining(owner, shards, optimizer)
            )
            self._known[id(optimizer)] = known
        return known


def made_for_all_replicas(make: Callable[[], Any]) -> Any:
    """Calls `make` once, outside of functions and of the replicas' step.

    Inside of strategy.run every replica must call it, outside of the function's
    conditionals and loops.
    """
    context = tf.distribute.get_replica_context()

    def lifted(strategy: Any = None) -> Any:
        del strategy
        with tf.init_scope():
            return make()

    if context is None or not tf.distribute.has_strategy():
        return lifted()
    return context.merge_call(lifted)


def name_of(optimizer: Any) -> str:
    """Returns an optimizer's name, under which slots are saved."""
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return str(optimizer.get_name())
    name = str(getattr(optimizer, "name", type(optimizer).__name__))
    return lasting_name(optimizer, name)


def sort_gradients(
    shards: TapedShards, pairs: Sequence[tuple[Any, Any]]
) -> tuple[dict[int, tf.IndexedSlices], list[tuple[Any, Any]]]:
    """Splits pairs into tables' gradients, by index, and dense pairs.

    Args:
      shards: the tables.
      pairs: gradients, none of which is None, and their variables.

    Raises:
      tfembed.errors.ArgumentError: a table's gradient that is not
        tf.IndexedSlices, a repeated table, or a table of another object.
    """
    gradients: dict[int, tf.IndexedSlices] = {}
    others = []
    for gradient, variable in pairs:
        index = shards.index_of(variable)
        if index is None and isinstance(variable, TrainedTable):
            raise errors.ArgumentError(
                f"Table {variable.name!r} is another object's. Call "
                "apply_optimizer of that one, with an optimizer of its own."
            )
        if index is None:
            others.append((gradient, variable))
            continue
        if not isinstance(gradient, tf.IndexedSlices):
            raise errors.ArgumentError(
                f"The gradient of table {variable.name!r} must be "
                "tf.IndexedSlices by id, as `tape.gradient` gives; got "
                f"{type(gradient).__name__}."
            )
        if index in gradients:
            raise errors.ArgumentError(
                f"Table {variable.name!r} comes twice. Give each table once: its "
                "gradient is that of all lookups."
            )
        gradients[index] = gradient
    return gradients, others


def rule_of(wrapped: WrappedOptimizer, optimizer: Any) -> FusedRule | RowRule:
    """Returns the rule by which an optimizer updates all rows of a table.

    Args:
      wrapped: the wrapped optimizer.
      optimizer: the user's optimizer.
    """
    rule = wrapped.rule
    if not isinstance(rule, FusedRule):
        return rule
    if isinstance(rule.optimizer, _MOVE_TOUCHED_ROWS):
        return rule
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return V1Rows(optimizer)
    if base_of(optimizer) is not None:
        return V2Rows(optimizer)
    return KerasRows(optimizer)


def _slots_of(
    rule: FusedRule | RowRule,
) -> tuple[list[float], tuple[str, ...]]:
    """Returns each slot's initial value and the optimizer's name of it."""
    if isinstance(rule, FusedRule):
        starts = dict(rule.optimizer.slot_initial_values)
        return list(starts.values()), rule.slot_labels or tuple(starts)
    return list(rule.slot_initial_values.values()), rule.slot_names


def _check_clipping(wrapped: WrappedOptimizer) -> None:
    clipping = wrapped.clipping
    for option in ("clipvalue", "clipnorm", "global_clipnorm"):
        if getattr(clipping, option, None):
            raise errors.UnsupportedError(
                f"The optimizer {wrapped.name!r} has `{option}`, which is over "
                "gradients of all replicas, and tables whose rows are spread "
                "over replicas have none that is whole. Clip the gradients that "
                "the tape gives, or use engine='replicated'."
            )


def _scaled(slices: tf.IndexedSlices, factor: Any) -> tf.IndexedSlices:
    return tf.IndexedSlices(
        slices.values * factor, slices.indices, slices.dense_shape
    )
