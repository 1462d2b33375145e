"""Ratings in MovieLens' formats.

196 <tab> 242 <tab> 3 <tab> 881250949                     u.data of 100K
1::1193::5::978300760                                     ratings.dat of 1M, 10M
userId,movieId,rating,timestamp                           ratings.csv of 20M on
user_id:token <tab> item_id:token <tab> rating:float ...  RecBole's `.inter`
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

import numpy as np

from tfembed.data import tables
from tfembed.data.columns import Array, Kind
from tfembed.data.tables import Layout, SkippedLines
from tfembed.errors import DataError
from tfembed.optional_packages import optional

_COLUMNS = ("user_id", "item_id", "rating", "timestamp")
# Names in headers, in small letters and without "_", and the columns.
_NAMES = {
    **{name.replace("_", ""): name for name in _COLUMNS},
    "user": "user_id",
    "item": "item_id",
    "movieid": "item_id",
    "movie": "item_id",
    "time": "timestamp",
}
_ID = Kind("int64", blank=None)
_RATING = Kind("float32", blank=None, finite=True)
_TIME = Kind("float64", blank=None, finite=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Ratings:
    """Ratings of items by users.

    Attributes:
      users, items: int64 [n], the ids of the file.
      values: float32 [n], the ratings.
    """

    users: Array
    items: Array
    values: Array

    def __len__(self) -> int:
        return len(self.values)

    def take(self, positions: Array) -> Ratings:
        """Returns the ratings at `positions`."""
        columns = self.users, self.items, self.values
        return Ratings(*(column[positions] for column in columns))


def read_ratings(
    path: str | os.PathLike[str], *, skipped: SkippedLines | None = None
) -> Ratings:
    """Reads a file of ratings, plain or gzipped.

    Args:
      path: a file in one of the formats above. The header names the columns,
        in any order; without a header they are user, item, rating and others.
      skipped: counts bad lines, which are skipped. None: a bad line raises an
        error.

    Raises:
      DataError: the file is missing, unreadable, empty, has an unknown header
        or a bad line. The text names the path and the line.
      UnsupportedError: pyarrow is not installed.
    """
    optional("pyarrow", "`tfembed.data.read_ratings`")
    kinds = {"user_id": _ID, "item_id": _ID, "rating": _RATING}
    return Ratings(*_read(os.fspath(path), kinds, skipped))


def read_histories(path: str | os.PathLike[str]) -> dict[int, list[int]]:
    """Returns the items of each user, oldest first.

    Files are as for `read_ratings`; without a header, the fourth column is the
    timestamp. Items with the same timestamp are in the file's order.

    Raises:
      DataError, UnsupportedError: as of `read_ratings`.
    """
    optional("pyarrow", "`tfembed.data.read_histories`")
    kinds = {"user_id": _ID, "item_id": _ID, "timestamp": _ID}
    try:
        users, items, times = _read(os.fspath(path), kinds, None)
    except DataError:  # Times may have fractions; those of ids may not.
        kinds["timestamp"] = _TIME
        users, items, times = _read(os.fspath(path), kinds, None)
    order = np.argsort(times, kind="stable")
    histories: dict[int, list[int]] = {}
    for user, item in zip(users[order].tolist(), items[order].tolist()):
        histories.setdefault(user, []).append(item)
    return histories


def planted_ratings(
    users: int = 1000, items: int = 500, count: int = 50_000, seed: int = 0
) -> Ratings:
    """Draws `count` ratings that a model can learn, for programs without data.

    Each user and item has a vector of four numbers. The product determines how
    often the user picks the item and, with noise, how the user rates it, from
    1 to 5. As in real logs, items differ in popularity, and their ids are not
    small numbers. The same `seed` gives the same ratings.
    """
    draw = np.random.default_rng(seed)
    match = draw.normal(size=(users, 4)) @ draw.normal(size=(items, 4)).T / 2
    chance = np.exp(match) / np.sqrt(np.arange(1, items + 1))
    chance /= chance.sum(axis=1, keepdims=True)
    user = np.sort(draw.integers(users, size=count))
    counts = np.bincount(user, minlength=users)
    item = np.concatenate(
        [draw.choice(items, size=n, p=p) for n, p in zip(counts, chance)]
    )
    score = 3 + match[user, item] + draw.normal(0, 0.3, count)
    ids = draw.permutation(items) * 1_000_003 + 17
    order = draw.permutation(count)
    return Ratings(
        user[order].astype(np.int64) + 1,
        ids[item][order].astype(np.int64),
        np.clip(np.rint(score), 1, 5)[order].astype(np.float32),
    )


def _read(
    path: str, kinds: Mapping[str, Kind], skipped: SkippedLines | None
) -> list[Array]:
    """Returns the columns of a whole file."""
    layout = _layout(path, kinds)
    parts = [
        [rows.columns[name] for name in kinds]
        for rows in tables.sift(tables.read(layout, kinds), skipped)
    ]
    columns = [np.concatenate(column) for column in zip(*parts)]
    if not columns or not len(columns[0]):
        raise DataError("the file has no ratings", path=path)
    return columns


def _layout(path: str, kinds: Mapping[str, Kind]) -> Layout:
    """Infers the layout from the first line, which may be a header."""
    log = tables.read_header(path, ("\t", "::", ","), quoted=",")
    names = [name.strip("# ") for name in log.names]
    if any(name.lstrip("+-").isdigit() for name in names[:2]):
        others = (f"field {i + 1}" for i in range(len(_COLUMNS), len(names)))
        columns = (*_COLUMNS[: max(len(names), 3)], *others)
        log = dataclasses.replace(log, line=0, offset=0)
    else:
        plain = [n.partition(":")[0].replace("_", "").lower() for n in names]
        columns = tuple(_NAMES.get(p, n) for p, n in zip(plain, names))
    tables.check_names(columns, kinds, path, 1)
    return dataclasses.replace(log, names=columns)
