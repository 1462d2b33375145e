"""The work that is measured: made from seeds, the same for every contender."""

from __future__ import annotations

import dataclasses

import numpy as np

FEATURES = 26
BATCH = 4096
ZIPF = 1.05


@dataclasses.dataclass(frozen=True)
class Batch:
    """Ids of all features; feature f's bags are splits[f*B : (f+1)*B + 1]."""

    ids: np.ndarray
    splits: np.ndarray

    def feature(self, f: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, row_splits) of one feature."""
        at = self.splits[f * BATCH : (f + 1) * BATCH + 1]
        return self.ids[at[0] : at[-1]], at - at[0]


def click_batch(rng: np.random.Generator, vocabulary: int, ids: int) -> Batch:
    """One batch: `ids` = 1 is one id a bag, else U{ids/2 .. 3 ids/2} of them.

    Ids are Zipf(1.05) over a random order of the vocabulary.
    """
    bags = FEATURES * BATCH
    lengths = np.ones(bags, np.int64)
    if ids > 1:
        lengths = rng.integers(ids // 2, ids + ids // 2 + 1, bags)
    ranks = zipf(rng, vocabulary, int(lengths.sum()))
    scattered = (ranks * 2654435761) % vocabulary
    splits = np.concatenate([[0], np.cumsum(lengths)])
    return Batch(scattered.astype(np.int64), splits.astype(np.int64))


def zipf(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    """Ranks in [0, n), P(rank r) proportional to (r + 1) ** -1.05."""
    weights = np.arange(1, n + 1, dtype=np.float64) ** -ZIPF
    cumulative = np.cumsum(weights)
    return np.searchsorted(cumulative, rng.random(size) * cumulative[-1])
