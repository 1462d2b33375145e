"""V0's part of a step as functions of tensors: rows for a tape, and their training.

The proof of what runs on TPUs compiles this too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed.embedding.xla.sharded_table import with_gradient
from tfembed.embedding.xla.stack import Stack, StackRows
from tfembed.foreign_optimizers.rules import FusedRule, RowRule, TableRows

__all__ = ["FoundRows", "TapedProgram"]


@dataclasses.dataclass(frozen=True, eq=False)
class FoundRows:
    """The result of a lookup.

    Attributes:
      rows: the rows of each table that was asked for, [n, dim].
      rounds: the rounds of each stack that was asked for, by its index.
    """

    rows: list[tf.Tensor]
    rounds: dict[int, tf.Tensor]


class TapedProgram:
    """Makes one exchange for each width, on the way there and on the way back.

    Args:
      tables: the TableConfigs.
      stacks: the stacks of all tables.
    """

    def __init__(self, tables: Sequence[Any], stacks: Sequence[Stack]) -> None:
        self._tables = tables
        self.stacks = list(stacks)

    def stacks_of(self, tables: Sequence[int]) -> dict[int, list[int]]:
        """Returns those of `tables` in each stack, in order, by its index."""
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
        """Rows of ids, each table's with a gradient for its anchor.

        Args:
          rows: the rows of each stack that has some of the tables, by its index:
            this replica's.
          anchors: the anchors of each table, by its index, [0, dim].
          ids: the ids of each table, int32 [n]; negative ones give zeros.
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
        """The gradients of all rows of a stack, [rows, width], from everywhere.

        Args:
          s: its index.
          gradients: the gradients by the index of each table that has one.
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
        """Trains the stacks that have gradients; returns them by their index.

        Tables without a gradient keep their rows and slots.

        Args:
          rule: how rows move: a fused rule that leaves rows without a gradient
            alone, or an optimizer's own update, which has all rows.
          rows: the rows of each such stack.
          gradients: the gradients by the index of each table, of this replica's
            ids.
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
        """A stack's rows: those of `tables` as after, the others as before."""
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
        # As an optimizer does, which lets a NaN into its variables.
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
        """A table's rows and slots."""
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
        """A stack of its tables' rows."""
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
        """Ids of a stack and their gradients."""
        stack = self.stacks[s]
        ids = []
        for table, slices in gradients.items():
            size = self._tables[table].vocabulary_size
            inside = (slices.indices >= 0) & (slices.indices < size)
            known = tf.where(inside, slices.indices, -1)
            ids.append(stack.ids(table, tf.cast(known, tf.int32)))
        values = [slices.values for slices in gradients.values()]
        return tf.concat(ids, 0), tf.concat(values, 0)
