"""Lookups and updates of stacked tables, compiled by XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.xla_entries import Entries, EntriesForm
from tfembed.embedding.xla_program import TablesProgram
from tfembed.embedding.xla_stack import StackRows
from tfembed.embedding.xla_stack_variables import StackVariables
from tfembed.ops.private import traced_for_xla

__all__ = ["XlaSteps"]


class XlaSteps:
    """A part of the program around it, or compiled functions of their own.

    Args:
      plan: of the embedding.
      stacks: its tables.
      nonfinite_rows: a variable int64 [tables] that counts.
      nonfinite: "skip" or "allow".
    """

    def __init__(
        self,
        plan: EmbeddingPlan,
        stacks: Sequence[StackVariables],
        nonfinite_rows: Any,
        nonfinite: str,
    ) -> None:
        self._stacks = stacks
        self._program = TablesProgram(
            plan.tables, [one.stack for one in stacks]
        )
        self._tables = len(plan.tables)
        self._nonfinite_rows = nonfinite_rows
        self._nonfinite = nonfinite
        self._compiled: dict[Any, Callable[..., Any]] = {}

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
        return self._compiled[key]([one.flat for one in entries], others)

    def _look_up(
        self, entries: Sequence[Entries], others: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        del others
        return self._program.look_up(self._rows(entries), entries).activations

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
        self._nonfinite_rows.assign_add(tf.cast(tf.stack(counts), tf.int64))

    def _rows(self, entries: Sequence[Entries]) -> dict[int, StackRows]:
        return {
            s: self._stacks[s].read() for s in self._program.features(entries)
        }


def _compiled(
    program: Callable[..., Any], forms: tuple[EntriesForm, ...]
) -> Callable[..., Any]:
    @tf.function(jit_compile=True, autograph=False)
    def run(parts: list[list[tf.Tensor]], others: list[tf.Tensor]) -> Any:
        entries = [
            Entries(form, *flat)
            for form, flat in zip(forms, parts, strict=True)
        ]
        return program(entries, others)

    return run
