"""Counts over all rows of a saved table, made in one pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from tfembed.inspection.ranking import norms
from tfembed.saved.saved_table import Array, Chunk, SavedTable

__all__ = ["Histogram", "RowSurvey", "survey"]

# The width of a bin is 1/1024 of the power of two below it: the bin of a
# float64 is given by its bits above these. Bins range from 2^-64 to 2^192.
_LOW_BITS = 52 - 10
_FIRST_BIN = (1023 - 64) << 10
_BINS = 256 << 10


class Histogram:
    """Counts numbers from 0 up, in bins of about a thousandth of their values.

    So small and large numbers have the same relative precision, in any order.

    Attributes:
      counts: the count of each bin.
      total: the sum of all numbers.
      largest: the largest of the numbers; 0 without any.
      not_finite: the count of infinities and NaNs, which are in no bin.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(_BINS, np.int64)
        self.total = 0.0
        self.largest = 0.0
        self.not_finite = 0

    def __len__(self) -> int:
        return int(self.counts.sum())

    def add(self, numbers: Array) -> None:
        """Counts numbers, none of which is negative."""
        is_finite = np.isfinite(numbers)
        self.not_finite += int((~is_finite).sum())
        numbers = numbers[is_finite].astype(np.float64)
        if not len(numbers):
            return
        self.largest = max(self.largest, float(numbers.max()))
        self.total += float(numbers.sum())
        bins = (numbers.view(np.int64) >> _LOW_BITS) - _FIRST_BIN
        self.counts += np.bincount(np.clip(bins, 0, _BINS - 1), minlength=_BINS)

    def quantile(self, share: float) -> float:
        """Returns the number that this share stays within, to 0.05 %."""
        if not len(self):
            return 0.0
        reached = np.cumsum(self.counts) >= share * len(self)
        return min(float(_middles()[np.argmax(reached)]), self.largest)

    def binned(self, edges: Array) -> Array:
        """Returns counts between edges; a bin counts where its middle lies."""
        positions = np.searchsorted(edges, _middles(), side="right") - 1
        positions = np.clip(positions, 0, len(edges) - 2)
        return np.bincount(positions, self.counts, len(edges) - 1).astype(
            np.int64
        )


@dataclasses.dataclass(frozen=True)
class RowSurvey:
    """Counts over the rows of a table.

    Attributes:
      norms: the norms of the rows; None where rows are strings or of width 0.
      counters: the number of rows with a counter below 1, 2, 4, 8 and so on,
        without the rows of lower powers; ages in seconds where counters are
        times.
      untrained: the number of rows whose slots all have initial values; None
        without slots, or where the file does not have the initial values.
      shards: the rows of each shard of the file; empty where it has none, or
        one.
    """

    norms: Histogram | None
    counters: tuple[int, ...]
    untrained: int | None
    shards: tuple[int, ...]


def survey(table: SavedTable, now: float) -> RowSurvey:
    """Reads the whole table and counts.

    Args:
      table: the table.
      now: the time of the save in seconds since 1970, for the ages of rows.

    Raises:
      tfembed.errors.CheckpointError: the file is damaged.
    """
    has_norms = table.dtype != "string" and table.width > 0
    starts = table.slot_initial_values
    has_starts = bool(starts) and set(starts) == set(table.slot_widths)
    of_norms = Histogram()
    powers = np.zeros(65, np.int64)
    untrained = 0
    for chunk in table.chunks():
        if has_norms:
            of_norms.add(norms(chunk.rows))
        if chunk.counters is not None:
            powers += _powers(table, chunk.counters, now)
        if has_starts:
            untrained += _untrained(chunk, starts)
    last = int(np.flatnonzero(powers)[-1]) + 1 if powers.any() else 0
    return RowSurvey(
        norms=of_norms if has_norms else None,
        counters=tuple(powers[:last].tolist()),
        untrained=untrained if has_starts else None,
        shards=table.shard_sizes if len(table.shard_sizes) > 1 else (),
    )


def _powers(table: SavedTable, counters: Array, now: float) -> Array:
    """Returns the counters' histogram: 0 in bin 0, [2^(i-1), 2^i) in bin i."""
    numbers = counters.astype(np.float64)
    if table.counters == "seconds_since_1970":
        numbers = now - numbers
    positions = np.ceil(np.log2(np.maximum(numbers, 0) + 1)).astype(np.int64)
    counts: Array = np.bincount(positions, minlength=65)
    return counts


def _untrained(chunk: Chunk, starts: Mapping[str, float]) -> int:
    is_start = np.ones(len(chunk), bool)
    for name, slot in chunk.slots.items():
        is_start &= (slot == np.float32(starts[name])).all(1)
    return int(is_start.sum())


def _middles() -> Array:
    """Returns the middles of all bins; 0 for the first bin, which has 0."""
    bits = (np.arange(_BINS, dtype=np.int64) + _FIRST_BIN) << _LOW_BITS
    middles: Array = (bits | 1 << (_LOW_BITS - 1)).view(np.float64)
    middles[0] = 0.0
    return middles
