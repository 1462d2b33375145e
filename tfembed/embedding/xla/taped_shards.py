"""V0's tables under a TPUStrategy: rows spread over the replicas."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.host.tables import HostTable
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replicas import is_tpu
from tfembed.embedding.xla.sharded_table import ShardedVariables, TrainedTable
from tfembed.embedding.xla.stack import Stack, StackRows, stacks_of
from tfembed.embedding.xla.taped_program import TapedProgram
from tfembed.ops import exchange
from tfembed.ops.private import variable_accessed

__all__ = ["TapedShards", "are_sharded"]


def are_sharded(engine: str, strategy: Any) -> bool:
    """Whether an engine of V0 spreads rows over the replicas."""
    return (
        engine == "xla"
        and is_tpu(strategy)
        and int(strategy.num_replicas_in_sync) > 1
    )


class TapedShards:
    """Tables of one width are a stack, whose rows one exchange brings.

    Args:
      owner: the trackable object that saves the tables.
      plan: its tables.
      strategy: a TPUStrategy.

    Raises:
      tfembed.errors.UnsupportedError: there are no XLA kernels here.
    """

    def __init__(self, owner: Any, plan: EmbeddingPlan, strategy: Any) -> None:
        absent = exchange.why_missing()
        if absent:
            raise errors.UnsupportedError(
                f"engine='xla' cannot spread rows over replicas here: {absent} "
                "Use engine='replicated'."
            )
        self.plan = plan
        self.strategy = strategy
        self.variables = ShardedVariables(owner, strategy)
        # An optimizer trains all stacks: only the width tells them apart.
        without_rules = dataclasses.replace(
            plan, optimizers=(None,) * len(plan.tables)
        )
        replicas = int(strategy.num_replicas_in_sync)
        self.program = TapedProgram(
            plan.tables, stacks_of(without_rules, replicas)
        )
        self.values = [self._new_values(one) for one in self.stacks]
        self._anchors = [self._new_anchor(config) for config in plan.tables]
        self.tables = [self._new_table(i) for i in range(len(plan.tables))]
        self._rounds = self.variables.per_replica(
            tf.zeros([len(self.stacks)], tf.int32), "rounds"
        )

    @property
    def stacks(self) -> list[Stack]:
        """The stacks of all tables."""
        return self.program.stacks

    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """Returns the most rounds of a lookup, by the names of a stack's tables."""
        return {
            tuple(self.plan.tables[i].name for i in stack.tables): int(n)
            for stack, n in zip(self.stacks, self._rounds.numpy(), strict=True)
        }

    def index_of(self, table: Any) -> int | None:
        """The index of a table in the plan; None: it is another's."""
        indices = [
            i for i, t in enumerate(self.tables) if t.parameters is table
        ]
        return indices[0] if indices else None

    def find_rows(
        self, wanted: Sequence[tuple[Any, tf.Tensor]]
    ) -> list[tf.Tensor]:
        """Finds rows as a `static_lookup.FindRows` does, inside of strategy.run.

        Raises:
          tfembed.errors.StateError: outside of it.
        """
        self.check_inside_run("A lookup")
        indices = [self._index_of_config(config) for config, _ in wanted]
        anchors = {}
        for index in indices:
            table = self.tables[index].parameters
            # As a tape does for a variable that is read.
            variable_accessed(table)
            anchors[index] = tf.raw_ops.ReadVariableOp(
                resource=table.handle, dtype=tf.float32
            )
        found = self.program.look_up(
            {
                s: self.values[s].read_value()
                for s in self.program.stacks_of(indices)
            },
            anchors,
            {
                index: ids
                for index, (_, ids) in zip(indices, wanted, strict=True)
            },
        )
        self._keep_rounds(found.rounds)
        return found.rows

    def read(self, s: int, slots: Sequence[Any]) -> StackRows:
        """Reads this replica's rows of a stack, and of slots beside it."""
        return StackRows(
            self.values[s].read_value(),
            tuple(slot.read_value() for slot in slots),
        )

    def check_inside_run(self, what: str) -> None:
        """Raises where a call is not part of the replicas' step.

        Raises:
          tfembed.errors.StateError: it is not.
        """
        context = tf.distribute.get_replica_context()
        if context is not None and context.strategy is self.strategy:
            return
        raise errors.StateError(
            f"{what} of tables whose rows are spread over replicas is a part of "
            "their step: call it inside of strategy.run, of the TPUStrategy "
            "that they were made under. engine='replicated' keeps all tables on "
            "each replica."
        )

    def new_slot(self, s: int, name: str, initial: float) -> Any:
        """A variable beside a stack's rows, saved as one tensor a table.

        Args:
          s: the stack's index.
          name: the name of the slot, behind the table's.
          initial: what all of it starts from.
        """
        stack = self.stacks[s]
        shape = stack.shapes()[0]
        slot = self.variables.per_replica(
            tf.fill(shape, initial), f"{self._label(stack)}/{name}"
        )
        for table in stack.tables:
            config = self.plan.tables[table]
            self.variables.table(
                slot,
                stack.first(table),
                (config.vocabulary_size, config.dim),
                f"{config.name}/{name}",
                tf.constant_initializer(initial),
            )
        return slot

    def _new_values(self, stack: Stack) -> Any:
        return self.variables.per_replica(
            tf.zeros(stack.shapes()[0]), self._label(stack)
        )

    def _new_anchor(self, config: Any) -> Any:
        with self.strategy.scope():
            return tf.Variable(
                tf.zeros([0, config.dim]),
                trainable=False,
                name=f"{config.name}/anchor",
            )

    def _new_table(self, index: int) -> HostTable:
        config, rule = self.plan.tables[index], self.plan.optimizers[index]
        (s,) = self.program.stacks_of([index])
        shape = (config.vocabulary_size, config.dim)
        parameters = self.variables.table(
            self.values[s],
            self.stacks[s].first(index),
            shape,
            config.name,
            config.initializer,
            functools.partial(TrainedTable, anchor=self._anchors[index]),
        )
        if rule is None:
            return HostTable(parameters, {})
        slots = {}
        for name in rule.slot_names:
            of_table = rule.slot_shape(name, shape)
            rows = exchange.shard_rows(of_table[0], self.stacks[s].replicas)
            label = f"{config.name}/{name}"
            slots[name] = self.variables.table(
                self.variables.per_replica(
                    tf.zeros([rows, of_table[1]]), label
                ),
                0,
                of_table,
                label,
                rule.slot_initializer(name),
            )
        return HostTable(parameters, slots)

    def _index_of_config(self, config: Any) -> int:
        return next(
            i for i, one in enumerate(self.plan.tables) if one is config
        )

    def _keep_rounds(self, rounds: dict[int, tf.Tensor]) -> None:
        none = tf.zeros([], tf.int32)
        now = [rounds.get(s, none) for s in range(len(self.stacks))]
        self._rounds.assign(tf.maximum(self._rounds.read_value(), now))

    def _label(self, stack: Stack) -> str:
        return "_".join(self.plan.tables[i].name for i in stack.tables)
