"""The rows of a saved table that come first: by norm, or by what was noted."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tfembed import errors
from tfembed.inspection.saved_table import Array, Chunk, Key, SavedTable

__all__ = ["ORDERS", "RankedRow", "norms", "rank"]

# By order, the counters that tell it, and whether the largest come first.
ORDERS: dict[str, dict[str, bool]] = {
    "norm": {},
    "recent": {"steps_ago": False, "seconds_since_1970": True},
    "frequent": {"writes": True},
}


@dataclasses.dataclass(frozen=True)
class RankedRow:
    """A row, and by what it was ranked.

    Attributes:
      key: an integer, or bytes.
      score: the norm, or the counter.
      row: [width].
    """

    key: Key
    score: float
    row: Array


def norms(rows: Array) -> Array:
    """The Euclidean norms of rows [n, width], float64 [n].

    Raises:
      tfembed.errors.UnsupportedError: rows of strings.
    """
    if rows.dtype == object:
        raise errors.UnsupportedError("Rows of strings have no norm.")
    rows = rows.astype(np.float64)
    norm: Array = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return norm


def rank(table: SavedTable, order: str, count: int) -> list[RankedRow]:
    """The first `count` rows in an order; holds no more than these.

    Args:
      table: the table whose rows are ranked.
      order: "norm": the largest first, before all those that are not finite;
        "recent": those that training or a write touched last; "frequent": most
        often.
      count: how many. Of rows that are alike, those of the smallest keys, since
        the order of keys in a file is another one each time.

    Raises:
      tfembed.errors.UnsupportedError: the table's counters do not tell.
      tfembed.errors.CheckpointError: the file is damaged.
    """
    by_counter = ORDERS[order]
    if by_counter and table.counters not in by_counter:
        raise errors.UnsupportedError(
            f"Table '{table.name}' does not say which rows are most {order}: "
            f"its eviction policy notes {table.counters or 'nothing'}. "
            "LeastRecent notes when a row was touched, LeastFrequent how often."
        )
    largest_first = by_counter.get(table.counters, True)
    best: list[tuple[float, RankedRow]] = []
    for chunk in table.chunks(slots=False, counters=bool(by_counter)):
        scores = _scores(chunk, order)
        worth = scores if largest_first else -scores
        worth = np.where(np.isnan(worth), np.inf, worth)
        if len(best) == count:
            at = np.flatnonzero(worth >= best[-1][0])
        else:
            at = np.arange(len(chunk))
        if len(at) > count:
            at = _first(at, worth, chunk.keys, count)
        best += [
            (
                float(worth[i]),
                RankedRow(
                    _key(chunk.keys[i]), float(scores[i]), chunk.rows[i].copy()
                ),
            )
            for i in at
        ]
        best.sort(key=lambda one: (-one[0], one[1].key))
        del best[count:]
    return [row for _, row in best]


def _first(at: Array, worth: Array, keys: Array, count: int) -> Array:
    """The `count` positions in `at` with the largest worth, then smallest keys."""
    least = np.partition(worth[at], -count)[-count]
    above = at[worth[at] > least]
    alike = at[worth[at] == least]
    missing = count - len(above)
    smallest = np.argpartition(keys[alike], missing - 1)[:missing]
    return np.concatenate([above, alike[smallest]])


def _scores(chunk: Chunk, order: str) -> Array:
    if order == "norm":
        return norms(chunk.rows)
    assert chunk.counters is not None  # The caller looked.
    return chunk.counters.astype(np.float64)


def _key(key: Any) -> Key:
    return key if isinstance(key, bytes) else int(key)
