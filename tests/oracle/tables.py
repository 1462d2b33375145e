"""Whole tables over many steps, in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from oracle.features import Feature, bags_of
from oracle.tolerance import RELATIVE, Terms
from oracle.updates import apply_rule, initial_slots

# Where a rounded number is so near to a tie, the oracle does not know it.
_TIE = 1e-3


@dataclasses.dataclass
class Rule:
    """An update rule: its name, its parameters, and what it does to rows."""

    name: str
    parameters: dict
    accumulate: bool = True
    moves_all_rows: bool = False


class Table:
    """The rows and slots of some ids; an id without a row reads the first one.

    Args:
      ids: all that may be looked up.
      rows: what they start from, [ids, dim].
      has_rows: whether the ids have rows from the start.
      rule: of the updates.
    """

    def __init__(
        self, ids: Sequence[int], rows: np.ndarray, has_rows: bool, rule: Rule
    ):
        self.place = {key: i for i, key in enumerate(ids)}
        self.fixed_vocabulary = has_rows
        self.rule = rule
        self.rows = Terms.of(rows)
        self.slots = [
            Terms.of(np.tile(s, (len(rows), 1)))
            for s in initial_slots(
                rule.name, rule.parameters, self.rows.value.shape[1]
            )
        ]
        self.present = np.full(len(rows), has_rows)

    def row(self, key: int, quantization=None) -> Terms:
        i = self.place[key]
        found = Terms(self.rows.value[i], self.rows.size[i])
        return found if quantization is None else _rounded(found, *quantization)

    def step(
        self,
        features: Sequence[Feature],
        gradients: Sequence[np.ndarray],
        learning_rate: float,
    ) -> None:
        """One update by the gradients of the features' activations."""
        shape = self.rows.value.shape
        total = Terms.of(np.zeros(shape))
        touched = np.zeros(len(self.place), bool)
        for feature, gradient in zip(features, gradients, strict=True):
            for at, pairs in bags_of(feature, self.fixed_vocabulary):
                for key, factor in pairs:
                    term = Terms.of(gradient[at]) * factor
                    i = self.place[key]
                    touched[i] = True
                    if self.rule.accumulate:
                        total.value[i] += term.value
                        total.size[i] += term.size
                    else:
                        self._move(np.array([i]), _row(term), learning_rate)
        self.present |= touched
        if self.rule.accumulate:
            moved = self.present if self.rule.moves_all_rows else touched
            where = np.flatnonzero(moved)
            sums = Terms(total.value[where], total.size[where])
            self._move(where, sums, learning_rate)

    def _move(self, where: np.ndarray, sums: Terms, rate: float) -> None:
        if where.size == 0:
            return
        rows, slots = apply_rule(
            self.rule.name,
            _at(self.rows, where),
            [_at(slot, where) for slot in self.slots],
            sums,
            rate,
            self.rule.parameters,
        )
        for old, new in zip([self.rows, *self.slots], [rows, *slots]):
            old.value[where], old.size[where] = new.value, new.size


def well_posed(
    features: Sequence[Feature],
    gradients: Sequence[np.ndarray],
    fixed_vocabulary: bool,
) -> bool:
    """Whether neither sums of weights nor of gradients nearly cancel."""
    sums: dict[int, Terms] = {}
    for feature, gradient in zip(features, gradients, strict=True):
        for bag in feature.pruned(fixed_vocabulary):
            total, absolute = sum(bag.weights), sum(map(abs, bag.weights))
            if total and abs(total) < 0.1 * absolute:
                return False
        for at, pairs in bags_of(feature, fixed_vocabulary):
            for key, factor in pairs:
                term = Terms.of(gradient[at]) * factor
                sums[key] = sums[key] + term if key in sums else term
    return all(total.well_posed() for total in sums.values())


def _rounded(row: Terms, buckets: int, lower: float, upper: float) -> Terms:
    step = (upper - lower) / (buckets - 1)
    place = (np.clip(row.value, lower, upper) - lower) / step + 0.5
    is_near = np.abs(place - np.round(place)) < _TIE
    value = np.floor(place) * step + lower
    return Terms(value, np.abs(value) + is_near * step / RELATIVE)


def _at(terms: Terms, where: np.ndarray) -> Terms:
    return Terms(terms.value[where], terms.size[where])


def _row(terms: Terms) -> Terms:
    return Terms(terms.value[np.newaxis], terms.size[np.newaxis])
