"""The batches of all contenders, from seeds."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

ZIPF = 1.05
_SEED = 20261120
_SCATTER = 2654435761  # A prime: neighbours in rank are none in memory.


@dataclasses.dataclass(frozen=True)
class Tables:
    """The tables of a contender.

    Attributes:
      width: of a row.
      rows: of each table.
      features: of a batch.
      shared: whether all features have one table, of `rows` rows.
      rule: "adagrad", "row-wise", or "" for tables that are only read.
    """

    width: int
    rows: int
    features: int = 26
    shared: bool = False
    rule: str = ""

    @property
    def count(self) -> int:
        """How many tables."""
        return 1 if self.shared else self.features


@dataclasses.dataclass(frozen=True)
class Work:
    """The batches of a run.

    Attributes:
      ids: 1: one id a bag; n > 1: U{n/2 .. 3n/2} of them.
      skew: "zipf" or "uniform".
      batch: samples.
      count: distinct batches, which take turns.
      train: whether rows are updated too.
    """

    ids: int
    skew: str = "zipf"
    batch: int = 4096
    count: int = 4
    train: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Feature f's bags are splits[f * batch : (f + 1) * batch + 1] of ids."""

    ids: np.ndarray
    splits: np.ndarray
    features: int

    @property
    def size(self) -> int:
        """The samples."""
        return (len(self.splits) - 1) // self.features

    def feature(self, f: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, row splits) of one feature."""
        at = self.splits[f * self.size : (f + 1) * self.size + 1]
        return self.ids[at[0] : at[-1]], at - at[0]


def batches(tables: Tables, work: Work, folder: str) -> list[Batch]:
    """The batches, made once and kept in `folder` for all contenders."""
    name = (
        f"{work.skew}_{work.ids}_{work.batch}x{tables.features}_"
        f"{tables.rows}_{tables.shared:d}_{work.count}.npz"
    )
    path = pathlib.Path(folder) / name
    if not path.exists():
        rng = np.random.default_rng(_SEED)
        arrays = {}
        for i in range(work.count):
            arrays[f"ids{i}"], arrays[f"splits{i}"] = make_batch(
                rng, tables, work
            )
        np.savez(path, **arrays)
    with np.load(path) as kept:
        return [
            Batch(kept[f"ids{i}"], kept[f"splits{i}"], tables.features)
            for i in range(work.count)
        ]


def make_batch(
    rng: np.random.Generator, tables: Tables, work: Work
) -> tuple[np.ndarray, np.ndarray]:
    """(ids, splits) of one batch; Zipf's ranks are scattered over the rows."""
    bags = tables.features * work.batch
    lengths = np.ones(bags, np.int64)
    if work.ids > 1:
        lengths = rng.integers(work.ids // 2, work.ids * 3 // 2 + 1, bags)
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    total = int(splits[-1])
    if work.skew == "uniform":
        return rng.integers(0, tables.rows, total, np.int64), splits
    ids = zipf(rng, tables.rows, total) * _SCATTER % tables.rows
    if tables.shared:  # Each feature has favourites of its own.
        ends = splits[:: work.batch]
        feature = np.repeat(np.arange(tables.features), np.diff(ends))
        ids = (ids + feature * (tables.rows // tables.features)) % tables.rows
    return ids.astype(np.int64), splits


def zipf(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    """Ranks in [0, n), P(rank r) proportional to (r + 1) ** -1.05."""
    weights = np.arange(1, n + 1, dtype=np.float64) ** -ZIPF
    cumulative = np.cumsum(weights)
    ranks = np.searchsorted(cumulative, rng.random(size) * cumulative[-1])
    return np.minimum(ranks, n - 1)
