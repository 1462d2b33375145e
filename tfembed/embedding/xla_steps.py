"""Lookups and updates of stacked tables, compiled by XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.xla_entries import Entries, EntriesForm
from tfembed.embedding.xla_pooling import combine, entry_gradients
from tfembed.embedding.xla_stack import Stack
from tfembed.ops.private import traced_for_xla

__all__ = ["XlaSteps"]


class XlaSteps:
    """A part of the program around it, or compiled functions of their own.

    All features of a stack go through one lookup, and one update.

    Args:
      plan: of the embedding.
      stacks: of its tables.
      nonfinite_rows: a variable int64 [tables] that counts.
      nonfinite: "skip" or "allow".
    """

    def __init__(
        self,
        plan: EmbeddingPlan,
        stacks: Sequence[Stack],
        nonfinite_rows: Any,
        nonfinite: str,
    ) -> None:
        self._plan = plan
        self._stacks = stacks
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
        found: dict[int, tf.Tensor] = {}
        for stack in self._stacks:
            places = _features_of(stack, entries)
            if not places:
                continue
            parts = [_stacked_ids(stack, entries[i]) for i in places]
            rows = stack.look_up(tf.concat(parts, 0)).rows
            split = tf.split(rows, [_size(part) for part in parts], 0)
            found.update(zip(places, split, strict=True))
        return [
            combine(found[i], one, self._plan.tables[one.form.plan.table])
            for i, one in enumerate(entries)
        ]

    def _update(
        self, entries: Sequence[Entries], others: Sequence[tf.Tensor]
    ) -> None:
        rates, *gradients = others
        counts = [tf.zeros([], tf.int32)] * len(self._plan.tables)
        for stack in self._stacks:
            places = _features_of(stack, entries)
            if not places:
                continue
            of_entries = [
                entry_gradients(
                    gradients[i],
                    entries[i],
                    self._plan.tables[entries[i].form.plan.table],
                )
                for i in places
            ]
            updated = stack.update(
                tf.concat([_stacked_ids(stack, entries[i]) for i in places], 0),
                tf.concat(of_entries, 0),
                rates[stack.tables[0]],
                self._nonfinite,
            )
            for table, count in zip(
                stack.tables,
                tf.unstack(updated.nonfinite_rows, len(stack.tables)),
                strict=True,
            ):
                counts[table] = count
        self._nonfinite_rows.assign_add(tf.cast(tf.stack(counts), tf.int64))


def _features_of(stack: Stack, entries: Sequence[Entries]) -> list[int]:
    return [
        i
        for i, one in enumerate(entries)
        if one.form.plan.table in stack.tables
    ]


def _stacked_ids(stack: Stack, entries: Entries) -> tf.Tensor:
    return stack.ids(entries.form.plan.table, entries.ids)


def _size(part: tf.Tensor) -> Any:
    size = part.shape[0]
    return tf.size(part) if size is None else size


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
