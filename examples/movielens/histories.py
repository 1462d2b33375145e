"""Samples of what a user watched before an item."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """One line per (user, what was watched before, what came next).

    Attributes:
      users, items: int64 [n].
      histories: int64 [n, length], the latest first; 0 where there is none.
      lengths: int64 [n], how much of `histories` there is.
    """

    users: np.ndarray
    items: np.ndarray
    histories: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.users)


def split(
    histories: dict[int, list[int]], length: int
) -> tuple[Samples, Samples]:
    """Training samples, and for each user the last item as a test.

    Users with fewer than three items are in the training part alone.
    """
    training, test = [], []
    for user, items in histories.items():
        last = len(items) - (1 if len(items) > 2 else 0)
        training += [(user, items[:t], items[t]) for t in range(1, last)]
        test += [(user, items[:t], items[t]) for t in range(last, len(items))]
    return _samples(training, length), _samples(test, length)


def _samples(rows: list[tuple[int, list[int], int]], length: int) -> Samples:
    before = np.zeros([len(rows), length], np.int64)
    lengths = np.zeros([len(rows)], np.int64)
    for i, (_, items, _) in enumerate(rows):
        latest = items[::-1][:length]
        before[i, : len(latest)] = latest
        lengths[i] = len(latest)
    users = np.array([row[0] for row in rows], np.int64)
    return Samples(
        users, np.array([row[2] for row in rows], np.int64), before, lengths
    )
