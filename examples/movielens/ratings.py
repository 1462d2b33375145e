"""Ratings in MovieLens' formats: RecBole's `.inter` and the original `u.data`.

user_id:token <tab> item_id:token <tab> rating:float ...     a typed header
196 <tab> 242 <tab> 3 <tab> 881250949                        or none
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterator

import numpy as np

from tfembed.errors import DataError

_COLUMNS = ("user_id", "item_id", "rating")
_MAX_REPORTED = 5
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Ratings:
    """Who gave what to what.

    Attributes:
      users, items: int64 [n], as in the file.
      values: float32 [n].
    """

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def take(self, places: np.ndarray) -> Ratings:
        """The ratings at `places`."""
        return Ratings(
            self.users[places], self.items[places], self.values[places]
        )


@dataclasses.dataclass
class SkippedLines:
    """What `read_ratings` passed over.

    Attributes:
      count: how many lines.
      first: what was wrong with the first of them.
    """

    count: int = 0
    first: list[str] = dataclasses.field(default_factory=list)

    def add(self, error: DataError) -> None:
        """Counts a bad line and remembers the first few."""
        self.count += 1
        if len(self.first) < _MAX_REPORTED:
            self.first.append(str(error))


def read_ratings(
    path: str | pathlib.Path, *, skipped: SkippedLines | None = None
) -> Ratings:
    """Reads a file of ratings.

    Args:
      path: tab-separated; columns by the names in a typed header, or without
        one user, item, rating and whatever follows.
      skipped: takes note of bad lines, which are passed over. None: a bad line
        is an error.

    Raises:
      DataError: the file is missing, unreadable, empty, without the columns, or
        has a bad line. It names the path and the line.
    """
    path = pathlib.Path(path)
    lines = _lines(path)
    if not lines:
        raise DataError(
            "the file is empty; it must hold ratings", path=str(path)
        )
    columns, width = _layout(lines[0], path)
    first = 1 if ":" in lines[0] else 0
    rows = []
    for number, line in enumerate(lines[first:], first + 1):
        try:
            rows.append(_rating(line, columns, width, path, number))
        except DataError as error:
            if skipped is None:
                raise
            skipped.add(error)
    if not rows:
        raise DataError("the file has no ratings", path=str(path))
    users, items, values = zip(*rows)
    return Ratings(
        np.array(users, np.int64),
        np.array(items, np.int64),
        np.array(values, np.float32),
    )


def folds(
    ratings: Ratings, num_folds: int, seed: int
) -> Iterator[tuple[Ratings, Ratings]]:
    """Shuffles once and yields (train, test), each rating in one test part."""
    order = np.random.default_rng(seed).permutation(len(ratings))
    parts = np.array_split(order, num_folds)
    for fold, test in enumerate(parts):
        train = np.concatenate(parts[:fold] + parts[fold + 1 :])
        yield ratings.take(train), ratings.take(test)


def _lines(path: pathlib.Path) -> list[str]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise DataError(
            f"the ratings cannot be read: {reason}", path=str(path)
        ) from error
    return text.splitlines()


def _layout(line: str, path: pathlib.Path) -> tuple[list[int], int]:
    """Where the three columns are, and how many fields a line has."""
    fields = line.split("\t")
    if ":" not in line:
        return [0, 1, 2], max(len(fields), 3)
    names = [field.partition(":")[0] for field in fields]
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        raise DataError(
            f"the header has no column {' or '.join(missing)}; it has {names}",
            path=str(path),
            line=1,
        )
    return [names.index(name) for name in _COLUMNS], len(fields)


def _rating(
    line: str,
    columns: list[int],
    width: int,
    path: pathlib.Path,
    number: int,
) -> tuple[int, int, float]:
    fields = line.split("\t")
    if len(fields) != width:
        raise DataError(
            f"{len(fields)} tab-separated fields, and {width} are expected: "
            f"{line!r}; the line may be cut off",
            path=str(path),
            line=number,
        )
    user, item, value = (fields[column] for column in columns)
    try:
        rating = (int(user), int(item), float(value))
    except ValueError:
        raise DataError(
            f"user, item and rating must be numbers; got {user!r}, {item!r}, "
            f"{value!r}",
            path=str(path),
            line=number,
        ) from None
    if not all(_SMALLEST <= key <= _LARGEST for key in rating[:2]):
        raise DataError(
            f"user and item must fit into 64 bits; got {user!r}, {item!r}",
            path=str(path),
            line=number,
        )
    if not math.isfinite(rating[2]):
        raise DataError(
            f"the rating must be finite; got {value!r}",
            path=str(path),
            line=number,
        )
    return rating
