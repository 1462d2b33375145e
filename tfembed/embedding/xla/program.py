"""The tables' part of a step as functions of tensors.

Engines, estimates and the proof of what runs on TPUs compile this and no other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed.embedding.xla.entries import Entries
from tfembed.embedding.xla.pooling import combine, entry_gradients
from tfembed.embedding.xla.stack import Stack, StackRows
from tfembed.ops import exchange

__all__ = ["Looked", "TablesProgram"]


@dataclasses.dataclass(frozen=True, eq=False)
class Looked:
    """What a lookup gives.

    Attributes:
      activations: of each feature, [cells, dim] or [samples, length, dim].
      rounds: of each stack that has features, by its place.
    """

    activations: list[tf.Tensor]
    rounds: dict[int, tf.Tensor]


class TablesProgram:
    """Lookup and update of all tables, each stack by one exchange.

    Args:
      tables: the TableConfigs.
      stacks: of all of them.
    """

    def __init__(self, tables: Sequence[Any], stacks: Sequence[Stack]) -> None:
        self._tables = tables
        self.stacks = list(stacks)

    def features(self, entries: Sequence[Entries]) -> dict[int, list[int]]:
        """By the place of each stack that has some, those of its features."""
        found: dict[int, list[int]] = {}
        for s, stack in enumerate(self.stacks):
            for i, one in enumerate(entries):
                if one.form.plan.table in stack.tables:
                    found.setdefault(s, []).append(i)
        return found

    def look_up(
        self, rows: Mapping[int, StackRows], entries: Sequence[Entries]
    ) -> Looked:
        """The activations of features.

        Args:
          rows: of each stack that has features, by its place.
          entries: of each feature.
        """
        found: dict[int, tf.Tensor] = {}
        rounds = {}
        for s, places in self.features(entries).items():
            stack = self.stacks[s]
            parts = [_stacked_ids(stack, entries[i]) for i in places]
            of_stack = stack.look_up(rows[s], tf.concat(parts, 0))
            split = tf.split(of_stack.rows, [_size(part) for part in parts], 0)
            found.update(zip(places, split, strict=True))
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
        """What training makes of the stacks that have features, by their place.

        Args:
          rows: of each stack that has features, by its place.
          entries: of each feature.
          gradients: of each feature's activations.
          rates: the learning rate of each table.
          nonfinite: "skip" or "allow".
        """
        updated = {}
        for s, places in self.features(entries).items():
            stack = self.stacks[s]
            if stack.rule is None:
                continue
            ids = [_stacked_ids(stack, entries[i]) for i in places]
            of_entries = [
                entry_gradients(
                    gradients[i], entries[i], self._config(entries[i])
                )
                for i in places
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
