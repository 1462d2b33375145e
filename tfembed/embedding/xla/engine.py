"""The xla engine: tables in device memory, in programs that XLA compiles.

`XlaShardedEngine` is for a TPUStrategy: rows are sharded over the replicas. One
trace of the step serves all replicas. Its program contains the exchange, so
enqueue, dequeue and apply_gradients must be inside of strategy.run.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.checkpoint.held_variable import HeldVariable
from tfembed.embedding import private
from tfembed.embedding.engines.choice import (
    check_xla_plan,
    check_xla_replicas,
)
from tfembed.embedding.features.inputs import InputSpec
from tfembed.embedding.host.engine import QueuedEngine
from tfembed.embedding.host.tables import HostTable, make_static_table
from tfembed.embedding.replicas import THIS_REPLICA
from tfembed.embedding.steps.batch_queue import Batch, TraceQueues
from tfembed.embedding.steps.step_forms import StepName
from tfembed.embedding.xla.entries import XlaInputs
from tfembed.embedding.xla.program import XlaSteps
from tfembed.embedding.xla.sharded_table import ShardedVariables
from tfembed.embedding.xla.stack import Stack, StackVariables, stacks_of
from tfembed.ops import exchange
from tfembed.ops.private import traced_for_xla

__all__ = [
    "XlaDeviceEngine",
    "XlaEngine",
    "XlaShardedEngine",
    "why_missing",
]


def why_missing() -> str | None:
    """Says why this engine is missing, as a sentence; None if it is there."""
    return exchange.why_missing() or None


def _memory_of_tables() -> str:
    """Returns the device of the tables of a single device."""
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.OneDeviceStrategy):
        return str(strategy.extended.worker_devices[0])
    return "/GPU:0" if tf.config.list_logical_devices("GPU") else "/CPU:0"


class XlaEngine(QueuedEngine):
    """Tables in the memory of a GPU, or of the CPU.

    In a function that XLA compiles, enqueue, dequeue and apply_gradients are a
    part of its program. Elsewhere batches wait in the host engine's queues, and
    lookups and updates are compiled functions of their own.

    Args:
      owner, plan, options, shapes: as for QueuedEngine.

    Raises:
      tfembed.errors.UnsupportedError: several replicas, or a table or option
        that no compiled program can serve.
      tfembed.errors.ArgumentError: tables that are larger than the memory.
    """

    def __init__(
        self, owner: Any, plan: Any, options: Any, shapes: Any = None
    ) -> None:
        check_xla_replicas()
        check_xla_plan(plan, options.nonfinite)
        # Tables are made outside of functions, on the device where functions
        # run.
        self._device = _memory_of_tables()
        super().__init__(owner, plan, options, shapes, TraceQueues())
        self._inputs = XlaInputs(plan)
        self._rounds = self._new_rounds()
        self._programs = XlaSteps(
            plan,
            self._stacks(),
            self._nonfinite_rows,
            options.nonfinite,
            self._rounds,
        )

    @abc.abstractmethod
    def _stacks(self) -> list[StackVariables]:
        """Lists the variables of tables that share an exchange."""

    @abc.abstractmethod
    def _new_rounds(self) -> Any:
        """Makes the variable of each exchange's rounds; None: no exchange."""

    @abc.abstractmethod
    def _check_replicas(self, batches: Mapping[int, Batch]) -> None:
        """Raises if batches, by replica, are enqueued outside of the step."""

    def _lookup_resources(self) -> list[Any]:
        """Lists the variables of the capacities of programs."""
        return self._inputs.resources

    @property
    def held_variables(self) -> list[HeldVariable]:
        """Returns []: TensorFlow's ops read the tables."""
        return []

    def _check_batches(self, batches: Mapping[int, Batch]) -> None:
        """Checks batches for a program.

        Raises:
          tfembed.errors.StateError: a batch outside of the replicas' step.
          tfembed.errors.UnsupportedError: an empty batch, or pipelined steps in
            a function that XLA compiles.
        """
        self._check_replicas(batches)
        for batch in batches.values():
            _check_has_samples(batch.specs, self._plan.paths)
        if traced_for_xla() and self._options.is_pipelined:
            raise errors.UnsupportedError(
                "pipeline_execution_with_tensor_core lets tables work beside "
                "the step, which a function that XLA compiles cannot. Leave it "
                "out, or leave jit_compile out."
            )

    def _new_fused(self, name: StepName) -> None:
        """Returns None: a program takes a batch's ids, not a queue."""

    def look_up(
        self, features: Sequence[Any], plans: Sequence[Any]
    ) -> list[tf.Tensor]:
        """As QueuedEngine's."""
        if traced_for_xla():
            return self._programs.look_up(self._inputs.traced(features, plans))
        entries = self._inputs.checked(features, plans)
        with tf.device(self._device):
            return self._programs.look_up(entries)

    def update(
        self,
        features: Sequence[Any],
        plans: Sequence[Any],
        gradients: Sequence[tf.Tensor],
        rates: tf.Tensor | None = None,
    ) -> None:
        """As QueuedEngine's."""
        if rates is None:
            rates = self.rates()
        if traced_for_xla():
            entries = self._inputs.traced(features, plans)
            self._programs.update(entries, gradients, rates)
            return
        entries = self._inputs.checked(features, plans)
        with tf.device(self._device):
            self._programs.update(entries, gradients, rates)


class XlaDeviceEngine(XlaEngine):
    """The engine of one device: each table stays on its own, none is exchanged.

    Arguments and errors are those of XlaEngine.
    """

    def _make_tables(self, owner: Any) -> list[HostTable]:
        return [
            make_static_table(owner, config, rule, self._new_variable)
            for config, rule in zip(
                self._plan.tables, self._plan.optimizers, strict=True
            )
        ]

    def _new_counts(self) -> Any:
        with tf.device(self._device):
            return private.single_variable(
                initial_value=tf.zeros([len(self.tables)], tf.int64),
                trainable=False,
                name="nonfinite_rows",
            )

    def _stacks(self) -> list[StackVariables]:
        return [
            StackVariables(
                Stack((i,), (rows,), 1, width, rule),
                table.parameters,
                tuple(table.slots.values()),
            )
            for i, (table, rule) in enumerate(
                zip(self.tables, self._plan.optimizers, strict=True)
            )
            for rows, width in [table.parameters.shape.as_list()]
        ]

    def _check_replicas(self, batches: Mapping[int, Batch]) -> None:
        """Does nothing: there is one replica."""

    def _new_rounds(self) -> None:
        """Returns None: nothing is exchanged."""

    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """Returns {}: nothing is exchanged."""
        return {}

    def _new_variable(self, **arguments: Any) -> Any:
        with tf.device(self._device):
            return private.single_variable(**arguments)


class XlaShardedEngine(XlaEngine):
    """An engine whose tables are sharded by rows over the replicas.

    Tables of one width, update rule and learning rate are a stack and share an
    exchange. Each stack has one variable per replica, and one more per slot.
    Arguments and errors are those of XlaEngine.
    """

    def _make_tables(self, owner: Any) -> list[HostTable]:
        strategy = tf.distribute.get_strategy()
        self._variables = ShardedVariables(owner, strategy)
        replicas = int(strategy.num_replicas_in_sync)
        self._made: list[StackVariables] = []
        found: dict[int, HostTable] = {}
        for stack in stacks_of(self._plan, replicas):
            variables, parts = self._new_stack(stack)
            self._made.append(variables)
            found.update(zip(stack.tables, parts, strict=True))
        return [found[i] for i in range(len(found))]

    def _new_counts(self) -> Any:
        return self._variables.per_replica(
            tf.zeros([len(self._plan.tables)], tf.int64),
            "nonfinite_rows",
            tf.VariableAggregation.SUM,
        )

    def _stacks(self) -> list[StackVariables]:
        return self._made

    def _new_rounds(self) -> Any:
        # All replicas have the same number of rounds.
        return self._variables.per_replica(
            tf.zeros([len(self._made)], tf.int32), "rounds"
        )

    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """Returns the most rounds of each stack, by the names of its tables."""
        return {
            tuple(self._plan.tables[i].name for i in one.stack.tables): int(n)
            for one, n in zip(self._made, self._rounds.numpy(), strict=True)
        }

    def _check_replicas(self, batches: Mapping[int, Batch]) -> None:
        if THIS_REPLICA not in batches:
            raise errors.StateError(
                "engine='xla' looks up inside of the TPU's step: call enqueue "
                "inside of strategy.run, in the function that dequeues."
            )

    def _new_stack(
        self, stack: Stack
    ) -> tuple[StackVariables, list[HostTable]]:
        configs = [self._plan.tables[i] for i in stack.tables]
        rule = stack.rule
        label = "_".join(config.name for config in configs)
        shape, *slot_shapes = stack.shapes()
        values = self._variables.per_replica(tf.zeros(shape), label)
        slots = {
            name: self._variables.per_replica(
                tf.zeros(slot_shape), f"{label}/{name}"
            )
            for name, slot_shape in zip(
                rule.slot_names if rule is not None else (),
                slot_shapes,
                strict=True,
            )
        }
        variables = StackVariables(stack, values, tuple(slots.values()))
        parts = []
        for index, config in enumerate(configs):
            first = sum(stack.table_rows[:index])
            shape = (config.vocabulary_size, config.dim)
            parameters = self._variables.table(
                values, first, shape, config.name, config.initializer
            )
            of_slots = {
                name: self._variables.table(
                    slot,
                    first,
                    rule.slot_shape(name, shape),
                    f"{config.name}/{name}",
                    rule.slot_initializer(name),
                )
                for name, slot in slots.items()
            }
            parts.append(HostTable(parameters, of_slots))
        return variables, parts


def _check_has_samples(
    specs: Sequence[InputSpec], paths: Sequence[str]
) -> None:
    """Raises tfembed.errors.UnsupportedError for batches of no samples."""
    for one, path in zip(specs, paths, strict=True):
        if one.batch_size == 0:
            raise errors.UnsupportedError(
                f"Input {path} has no samples, for which engine='xla' compiles "
                "no program. Leave such batches out, or use engine='host'."
            )
