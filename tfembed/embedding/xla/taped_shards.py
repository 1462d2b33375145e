"""V0's tables under a TPUStrategy: rows are sharded over the replicas.

A `TapedProgram` is V0's part of a step as functions of tensors: lookups and
updates. The proof for TPUs compiles it too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.host.tables import HostTable
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replicas import is_tpu
from tfembed.embedding.xla.sharded_table import (
    ShardedVariables,
    TrainedTable,
    with_gradient,
)
from tfembed.embedding.xla.stack import Stack, StackRows, stacks_of
from tfembed.foreign_optimizers.rules import FusedRule, RowRule, TableRows
from tfembed.ops import exchange
from tfembed.ops.private import variable_accessed

__all__ = [
    "FoundRows",
    "TapedProgram",
    "TapedShards",
    "are_sharded",
]


def are_sharded(engine: str, strategy: Any) -> bool:
    """Says whether an engine of V0 shards rows over the replicas."""
    return (
        engine == "xla"
        and is_tpu(strategy)
        and int(strategy.num_replicas_in_sync) > 1
    )


class TapedShards:
    """Tables sharded over replicas; those of one width share an exchange.

    Args:
      owner: the trackable object that saves the tables.
      plan: the plan of the tables.
      strategy: a TPUStrategy.

    Raises:
      tfembed.errors.UnsupportedError: the XLA kernels are missing.
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
        # One optimizer trains all stacks, so only the width separates them.
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
        """Returns the most rounds of a lookup, by table names of each stack."""
        return {
            tuple(self.plan.tables[i].name for i in stack.tables): int(n)
            for stack, n in zip(self.stacks, self._rounds.numpy(), strict=True)
        }

    def index_of(self, table: Any) -> int | None:
        """Returns a table's index in the plan, or None."""
        indices = [
            i for i, t in enumerate(self.tables) if t.parameters is table
        ]
        return indices[0] if indices else None

    def find_rows(
        self, wanted: Sequence[tuple[Any, tf.Tensor]]
    ) -> list[tf.Tensor]:
        """Finds rows as a `static_lookup.FindRows`, inside of strategy.run.

        Raises:
          tfembed.errors.StateError: outside of strategy.run.
        """
        self.check_inside_run("A lookup")
        indices = [self._index_of_config(config) for config, _ in wanted]
        anchors = {}
        for index in indices:
            table = self.tables[index].parameters
            # As for a variable that is read.
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
        """Reads this replica's rows and slots of a stack."""
        return StackRows(
            self.values[s].read_value(),
            tuple(slot.read_value() for slot in slots),
        )

    def check_inside_run(self, what: str) -> None:
        """Raises if a call is not inside of strategy.run.

        Raises:
          tfembed.errors.StateError: outside of strategy.run.
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
        """Makes a slot variable for a stack, saved as one tensor per table.

        Args:
          s: the stack's index.
          name: the name of the slot, after the table's.
          initial: the initial value of all elements.
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


@dataclasses.dataclass(frozen=True, eq=False)
class FoundRows:
    """The result of a lookup.

    Attributes:
      rows: the rows of each requested table, [n, dim].
      rounds: the rounds of each used stack, by the stack's index.
    """

    rows: list[tf.Tensor]
    rounds: dict[int, tf.Tensor]


class TapedProgram:
    """Looks up and updates by one exchange per stack in each direction.

    Args:
      tables: the TableConfigs.
      stacks: the stacks of all tables.
    """

    def __init__(self, tables: Sequence[Any], stacks: Sequence[Stack]) -> None:
        self._tables = tables
        self.stacks = list(stacks)

    def stacks_of(self, tables: Sequence[int]) -> dict[int, list[int]]:
        """Groups `tables` by the index of their stack, in order."""
        found: dict[int, list[int]] = {}
        for s, stack in enumerate(self.stacks):
            here = [table for table in stack.tables if table in tables]
            if here:
                found[s] = here
        return found

    def look_up(
        self,
        rows: Mapping[int, tf.Tensor],
        anchors: Mapping[int, tf.Tensor],
        ids: Mapping[int, tf.Tensor],
    ) -> FoundRows:
        """Returns the rows of ids, with a gradient for each table's anchor.

        Args:
          rows: this replica's rows of each used stack, by the stack's index.
          anchors: the anchor of each table, by the table's index, [0, dim].
          ids: the ids of each table, int32 [n]; negative ids give zeros.
        """
        found: dict[int, tf.Tensor] = {}
        rounds = {}
        for s, tables in self.stacks_of(list(ids)).items():
            stack = self.stacks[s]
            wanted = [stack.ids(table, ids[table]) for table in tables]
            of_stack = stack.look_up(
                StackRows(rows[s], ()), tf.concat(wanted, 0)
            )
            rounds[s] = of_stack.rounds
            split = tf.split(of_stack.rows, [one.shape[0] for one in wanted], 0)
            for table, part in zip(tables, split, strict=True):
                found[table] = with_gradient(
                    anchors[table],
                    ids[table],
                    part,
                    self._tables[table].vocabulary_size,
                )
        return FoundRows([found[table] for table in ids], rounds)

    def sum_gradients(
        self, s: int, gradients: Mapping[int, tf.IndexedSlices]
    ) -> tf.Tensor:
        """Sums the gradients of a stack's rows over replicas, [rows, width].

        Args:
          s: the stack's index.
          gradients: table index -> gradient, for tables that have one.
        """
        summed = self.stacks[s].sum_gradients(*self._entries(s, gradients))
        return summed.rows

    def train(
        self,
        rule: FusedRule | RowRule,
        rows: Mapping[int, StackRows],
        gradients: Mapping[int, tf.IndexedSlices],
        rate: tf.Tensor,
    ) -> dict[int, StackRows]:
        """Updates the stacks that have gradients; returns them by their index.

        Tables without a gradient keep their rows and slots.

        Args:
          rule: a fused rule, which does not change rows without a gradient, or
            a RowRule, an optimizer's own update, which updates all rows.
          rows: the rows of each such stack.
          gradients: table index -> gradients of this replica's ids.
          rate: the learning rate.
        """
        of_stacks = {
            s: {table: gradients[table] for table in tables}
            for s, tables in self.stacks_of(list(gradients)).items()
        }
        if isinstance(rule, FusedRule):
            return {
                s: self._fused(s, rule, rows[s], own, rate)
                for s, own in of_stacks.items()
            }
        return self._own_update(rule, rows, of_stacks, rate)

    def merged(
        self, s: int, before: StackRows, after: StackRows, tables: Sequence[int]
    ) -> StackRows:
        """Merges a stack's rows: updated for `tables`, unchanged for others."""
        return self._whole(
            [
                self._part(s, after if table in tables else before, table)
                for table in self.stacks[s].tables
            ]
        )

    def _fused(
        self,
        s: int,
        rule: FusedRule,
        rows: StackRows,
        gradients: Mapping[int, tf.IndexedSlices],
        rate: tf.Tensor,
    ) -> StackRows:
        stack = dataclasses.replace(self.stacks[s], rule=rule.optimizer)
        # As an optimizer, which does not check for NaNs.
        updated = stack.update(
            rows, *self._entries(s, gradients), rate, "allow"
        )
        return StackRows(updated.values, tuple(updated.slots))

    def _own_update(
        self,
        rule: RowRule,
        rows: Mapping[int, StackRows],
        of_stacks: Mapping[int, Mapping[int, tf.IndexedSlices]],
        rate: tf.Tensor,
    ) -> dict[int, StackRows]:
        tables = []
        for s, gradients in of_stacks.items():
            sums = self.sum_gradients(s, gradients)
            for table in gradients:
                own = self._part(s, rows[s], table)
                (of_table,) = self._parts(s, [sums], table)
                tables.append(
                    TableRows(
                        self._tables[table].name,
                        own.values,
                        own.slots,
                        of_table,
                    )
                )
        moved = iter(rule.update(tables, rate))
        return {
            s: self._whole(
                [
                    next(moved)
                    if table in gradients
                    else self._part(s, rows[s], table)
                    for table in self.stacks[s].tables
                ]
            )
            for s, gradients in of_stacks.items()
        }

    def _part(self, s: int, rows: StackRows, table: int) -> StackRows:
        """Returns a table's rows and slots."""
        values, *slots = self._parts(s, [rows.values, *rows.slots], table)
        return StackRows(values, tuple(slots))

    def _parts(
        self, s: int, whole: Sequence[tf.Tensor], table: int
    ) -> list[tf.Tensor]:
        stack = self.stacks[s]
        begin = stack.first(table)
        end = begin + stack.table_rows[stack.tables.index(table)]
        return [one[begin:end] for one in whole]

    def _whole(self, parts: Sequence[StackRows | TableRows]) -> StackRows:
        """Concatenates tables' rows to a stack."""
        return StackRows(
            tf.concat([part.values for part in parts], 0),
            tuple(
                tf.concat(slot, 0)
                for slot in zip(*[part.slots for part in parts], strict=True)
            ),
        )

    def _entries(
        self, s: int, gradients: Mapping[int, tf.IndexedSlices]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids of a stack and their gradients."""
        stack = self.stacks[s]
        ids = []
        for table, slices in gradients.items():
            size = self._tables[table].vocabulary_size
            inside = (slices.indices >= 0) & (slices.indices < size)
            known = tf.where(inside, slices.indices, -1)
            ids.append(stack.ids(table, tf.cast(known, tf.int32)))
        values = [slices.values for slices in gradients.values()]
        return tf.concat(ids, 0), tf.concat(values, 0)
