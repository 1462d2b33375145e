"""Lookups and updates of stacked tables, compiled by XLA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.xla.entries import Entries, EntriesForm
from tfembed.embedding.xla.program import TablesProgram
from tfembed.embedding.xla.stack import StackRows
from tfembed.embedding.xla.stack_variables import StackVariables
from tfembed.ops.private import traced_for_xla

__all__ = ["XlaSteps"]


class XlaSteps:
    """A part of the program around it, or compiled functions of their own.

    Args:
      plan: of the embedding.
      stacks: its tables.
      nonfinite_rows: a variable int64 [tables] that counts.
      nonfinite: "skip" or "allow".
      rounds: a variable int32 [stacks] that keeps the most rounds of an exchange;
        None where nothing is exchanged.
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
        """The activations of features."""
        return list(self._run(self._look_up, entries, []))

    def update(
        self,
        entries: Sequence[Entries],
        gradients: Sequence[tf.Tensor],
        rates: tf.Tensor,
    ) -> None:
        """Trains the tables by gradients of the activations, rates per table."""
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
            # Nothing but XLA runs the exchange: this stays a function.
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
