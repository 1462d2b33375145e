"""The tables' part of a step as functions of tensors.

Engines, estimates and the proof for TPUs all compile this program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.xla.entries import (
    Entries,
    EntriesForm,
    combine,
    entry_gradients,
)
from tfembed.embedding.xla.stack import Stack, StackRows, StackVariables
from tfembed.ops import exchange
from tfembed.ops.private import traced_for_xla

__all__ = ["Looked", "TablesProgram", "XlaSteps"]


@dataclasses.dataclass(frozen=True, eq=False)
class Looked:
    """The result of a lookup.

    Attributes:
      activations: the activations of each feature, [cells, dim] or [samples,
        length, dim].
      rounds: the rounds of each stack that has features, by the stack's index.
    """

    activations: list[tf.Tensor]
    rounds: dict[int, tf.Tensor]


class TablesProgram:
    """Lookup and update of all tables, each stack by one exchange.

    Args:
      tables: the TableConfigs.
      stacks: the stacks of all tables.
    """

    def __init__(self, tables: Sequence[Any], stacks: Sequence[Stack]) -> None:
        self._tables = tables
        self.stacks = list(stacks)

    def features(self, entries: Sequence[Entries]) -> dict[int, list[int]]:
        """Returns the indices of features by the index of their stack."""
        found: dict[int, list[int]] = {}
        for s, stack in enumerate(self.stacks):
            for i, one in enumerate(entries):
                if one.form.plan.table in stack.tables:
                    found.setdefault(s, []).append(i)
        return found

    def look_up(
        self, rows: Mapping[int, StackRows], entries: Sequence[Entries]
    ) -> Looked:
        """Returns the activations of features.

        Args:
          rows: the rows of each stack that has features, by the stack's index.
          entries: the entries of each feature.
        """
        found: dict[int, tf.Tensor] = {}
        rounds = {}
        for s, indices in self.features(entries).items():
            stack = self.stacks[s]
            parts = [_stacked_ids(stack, entries[i]) for i in indices]
            of_stack = stack.look_up(rows[s], tf.concat(parts, 0))
            split = tf.split(of_stack.rows, [_size(part) for part in parts], 0)
            found.update(zip(indices, split, strict=True))
            rounds[s] = of_stack.rounds
        return Looked(
            [
                combine(found[i], one, self._config(one))
                for i, one in enumerate(entries)
            ],
            rounds,
        )

    def update(
        self,
        rows: Mapping[int, StackRows],
        entries: Sequence[Entries],
        gradients: Sequence[tf.Tensor],
        rates: Mapping[int, Any] | Sequence[Any] | tf.Tensor,
        nonfinite: str = "skip",
    ) -> dict[int, exchange.Updated]:
        """Updates the stacks with features and a rule; returns them by index.

        Args:
          rows: the rows of each stack that has features, by the stack's index.
          entries: the entries of each feature.
          gradients: the gradients of each feature's activations.
          rates: the learning rate of each table.
          nonfinite: "skip" or "allow".
        """
        updated = {}
        for s, indices in self.features(entries).items():
            stack = self.stacks[s]
            if stack.rule is None:
                continue
            ids = [_stacked_ids(stack, entries[i]) for i in indices]
            of_entries = [
                entry_gradients(
                    gradients[i], entries[i], self._config(entries[i])
                )
                for i in indices
            ]
            updated[s] = stack.update(
                rows[s],
                tf.concat(ids, 0),
                tf.concat(of_entries, 0),
                rates[stack.tables[0]],
                nonfinite,
            )
        return updated

    def _config(self, entries: Entries) -> Any:
        return self._tables[entries.form.plan.table]


def _stacked_ids(stack: Stack, entries: Entries) -> tf.Tensor:
    return stack.ids(entries.form.plan.table, entries.ids)


def _size(part: tf.Tensor) -> Any:
    size = part.shape[0]
    return tf.size(part) if size is None else size


class XlaSteps:
    """Runs the program, inline in an XLA function or in its own functions.

    Args:
      plan: the plan of the embedding.
      stacks: the stacks of its tables.
      nonfinite_rows: a variable int64 [tables] that counts non-finite sums.
      nonfinite: "skip" or "allow".
      rounds: a variable int32 [stacks] with the most rounds of each exchange;
        None if nothing is exchanged.
    """

    def __init__(
        self,
        plan: EmbeddingPlan,
        stacks: Sequence[StackVariables],
        nonfinite_rows: Any,
        nonfinite: str,
        rounds: Any = None,
    ) -> None:
        self._stacks = stacks
        self._program = TablesProgram(
            plan.tables, [one.stack for one in stacks]
        )
        self._tables = len(plan.tables)
        self._nonfinite_rows = nonfinite_rows
        self._nonfinite = nonfinite
        self._rounds = rounds
        self._compiled: dict[Any, Any] = {}

    def look_up(self, entries: Sequence[Entries]) -> list[tf.Tensor]:
        """Returns the activations of features."""
        return list(self._run(self._look_up, entries, []))

    def update(
        self,
        entries: Sequence[Entries],
        gradients: Sequence[tf.Tensor],
        rates: tf.Tensor,
    ) -> None:
        """Updates the tables by activations' gradients and rates per table."""
        self._run(self._update, entries, [rates, *gradients])

    def _run(
        self,
        program: Callable[..., Any],
        entries: Sequence[Entries],
        others: list[tf.Tensor],
    ) -> Any:
        if traced_for_xla():
            return program(entries, others)
        forms = tuple(one.form for one in entries)
        key = (program.__name__, forms)
        if key not in self._compiled:
            self._compiled[key] = _compiled(program, forms)
        function = self._compiled[key]
        parts = [one.flat for one in entries]
        if tf.config.functions_run_eagerly():
            # Only XLA can run the exchange, so this stays a compiled function.
            function = function.get_concrete_function(parts, others)
        return function(parts, others)

    def _look_up(
        self, entries: Sequence[Entries], others: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        del others
        found = self._program.look_up(self._rows(entries), entries)
        self._keep_rounds(found.rounds)
        return found.activations

    def _update(
        self, entries: Sequence[Entries], others: Sequence[tf.Tensor]
    ) -> None:
        rates, *gradients = others
        counts = [tf.zeros([], tf.int32)] * self._tables
        new = self._program.update(
            self._rows(entries), entries, gradients, rates, self._nonfinite
        )
        for s, updated in new.items():
            self._stacks[s].assign(updated)
            tables = self._stacks[s].stack.tables
            for table, count in zip(
                tables,
                tf.unstack(updated.nonfinite_rows, len(tables)),
                strict=True,
            ):
                counts[table] = count
        self._keep_rounds({s: one.rounds for s, one in new.items()})
        self._nonfinite_rows.assign_add(tf.cast(tf.stack(counts), tf.int64))

    def _rows(self, entries: Sequence[Entries]) -> dict[int, StackRows]:
        return {
            s: self._stacks[s].read() for s in self._program.features(entries)
        }

    def _keep_rounds(self, rounds: Mapping[int, tf.Tensor]) -> None:
        if self._rounds is None:
            return
        none = tf.zeros([], tf.int32)
        now = [rounds.get(s, none) for s in range(len(self._stacks))]
        self._rounds.assign(tf.maximum(self._rounds.read_value(), now))


def _compiled(
    program: Callable[..., Any], forms: tuple[EntriesForm, ...]
) -> Any:
    @tf.function(jit_compile=True, autograph=False)
    def run(parts: list[list[tf.Tensor]], others: list[tf.Tensor]) -> Any:
        entries = [
            Entries(form, *flat)
            for form, flat in zip(forms, parts, strict=True)
        ]
        return program(entries, others)

    return run
