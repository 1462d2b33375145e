"""The top rows of a saved table, by norm or by the eviction policy's count."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tfembed import errors
from tfembed.saved.saved_table import Array, Chunk, Key, SavedTable

__all__ = ["ORDERS", "RankedRow", "norms", "rank"]

# For each order, the counters it needs, and whether the largest come first.
ORDERS: dict[str, dict[str, bool]] = {
    "norm": {},
    "recent": {"steps_ago": False, "seconds_since_1970": True},
    "frequent": {"writes": True},
}


@dataclasses.dataclass(frozen=True)
class RankedRow:
    """A row and its score.

    Attributes:
      key: the key, an integer or bytes.
      score: the norm, or the counter.
      row: the row, [width].
    """

    key: Key
    score: float
    row: Array


def norms(rows: Array) -> Array:
    """Returns the Euclidean norms of rows [n, width], float64 [n].

    Raises:
      tfembed.errors.UnsupportedError: the rows are strings.
    """
    if rows.dtype == object:
        raise errors.UnsupportedError("Rows of strings have no norm.")
    rows = rows.astype(np.float64)
    norm: Array = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return norm


def rank(table: SavedTable, order: str, count: int) -> list[RankedRow]:
    """Returns the first `count` rows in an order; holds no more in memory.

    Args:
      table: the table whose rows are ranked.
      order: "norm": rows that are not finite, then the largest norms;
        "recent": the rows that training or a write touched last; "frequent":
        the rows touched most often.
      count: the number of rows. Among equal scores, the smallest keys win,
        since the order of keys in a file differs from save to save.

    Raises:
      tfembed.errors.UnsupportedError: the table lacks the counters for the
        order.
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
    """Returns the `count` positions in `at` of the most worth; ties by key."""
    least = np.partition(worth[at], -count)[-count]
    above = at[worth[at] > least]
    alike = at[worth[at] == least]
    missing = count - len(above)
    smallest = np.argpartition(keys[alike], missing - 1)[:missing]
    return np.concatenate([above, alike[smallest]])


def _scores(chunk: Chunk, order: str) -> Array:
    if order == "norm":
        return norms(chunk.rows)
    assert chunk.counters is not None  # The caller has checked.
    return chunk.counters.astype(np.float64)


def _key(key: Any) -> Key:
    return key if isinstance(key, bytes) else int(key)
