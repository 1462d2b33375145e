"""Ratings in MovieLens' formats.

196 <tab> 242 <tab> 3 <tab> 881250949                     u.data of 100K
1::1193::5::978300760                                     ratings.dat of 1M, 10M
userId,movieId,rating,timestamp                           ratings.csv of 20M on
user_id:token <tab> item_id:token <tab> rating:float ...  RecBole's `.inter`
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfembed.data.logs import SkippedLines
from tfembed.errors import DataError

_COLUMNS = ("user_id", "item_id", "rating", "timestamp")
_CSV_NAMES = {"userId": "user_id", "movieId": "item_id"}
_SEPARATED = {"\t": "tab", "::": "'::'", ",": "comma"}
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Ratings:
    """Ratings of items by users.

    Attributes:
      users, items: int64 [n], the ids of the file.
      values: float32 [n], the ratings.
    """

    users: np.ndarray[Any, Any]
    items: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, positions: np.ndarray[Any, Any]) -> Ratings:
        """Returns the ratings at `positions`."""
        return Ratings(
            self.users[positions], self.items[positions], self.values[positions]
        )


def read_ratings(
    path: str | pathlib.Path, *, skipped: SkippedLines | None = None
) -> Ratings:
    """Reads a file of ratings.

    Args:
      path: a file in one of the formats above. The header names the columns;
        without a header they are user, item, rating and others.
      skipped: counts bad lines, which are skipped. None: a bad line raises an
        error.

    Raises:
      DataError: the file is missing, unreadable, empty, lacks a column, or has
        a bad line. The text names the path and the line.
    """
    path = pathlib.Path(path)
    lines = _lines(path)
    if not lines:
        raise DataError(
            "the file is empty; it must hold ratings", path=str(path)
        )
    layout = _layout(lines[0], _COLUMNS[:3], path)
    rows = []
    for number, line in enumerate(lines[layout.first :], layout.first + 1):
        try:
            rows.append(_rating(line, layout, path, number))
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


def read_histories(path: str | pathlib.Path) -> dict[int, list[int]]:
    """Returns the items of each user, oldest first.

    Args:
      path: a file in one of the formats above. The header names the columns;
        without a header they are user, item, rating and timestamp.

    Returns:
      The items by user; items with the same timestamp are in the file's order.

    Raises:
      DataError: the file is missing, unreadable, empty, lacks a column, or has
        a bad line. The text names the path and the line.
    """
    path = pathlib.Path(path)
    lines = _lines(path)
    if not lines:
        raise DataError("the file has no ratings", path=str(path))
    layout = _layout(lines[0], ("user_id", "item_id", "timestamp"), path)
    events = []
    for number, line in enumerate(lines[layout.first :], layout.first + 1):
        fields = line.split(layout.delimiter)
        try:
            user, item = (int(fields[c]) for c in layout.columns[:2])
            time = float(fields[layout.columns[2]])
        except (IndexError, ValueError):
            raise DataError(
                "user, item and timestamp must be numbers, separated by "
                f"{layout.delimiter!r}; got {line!r}",
                path=str(path),
                line=number,
            ) from None
        events.append((time, number, user, item))
    if not events:
        raise DataError("the file has no ratings", path=str(path))
    histories: dict[int, list[int]] = {}
    for _, _, user, item in sorted(events):
        histories.setdefault(user, []).append(item)
    return histories


def planted_ratings(
    users: int = 1000, items: int = 500, count: int = 50_000, seed: int = 0
) -> Ratings:
    """Draws ratings that a model can learn, for programs without data.

    Each user and item has a vector of four numbers. The product determines how
    often the user picks the item and, with noise, how the user rates it, from
    1 to 5. As in real logs, items differ in popularity, and their ids are not
    small numbers.

    Args:
      users: the number of users.
      items: the number of items.
      count: the number of ratings.
      seed: the seed of all draws: the same seed gives the same ratings.
    """
    draw = np.random.default_rng(seed)
    match = draw.normal(size=(users, 4)) @ draw.normal(size=(items, 4)).T / 2
    chance = np.exp(match) / np.sqrt(np.arange(1, items + 1))
    chance /= chance.sum(axis=1, keepdims=True)
    user = np.sort(draw.integers(users, size=count))
    item = np.concatenate(
        [
            draw.choice(items, size=number, p=chance[who])
            for who, number in enumerate(np.bincount(user, minlength=users))
        ]
    )
    score = 3 + match[user, item] + draw.normal(0, 0.3, count)
    ids = draw.permutation(items) * 1_000_003 + 17
    order = draw.permutation(count)
    return Ratings(
        user[order].astype(np.int64) + 1,
        ids[item][order].astype(np.int64),
        np.clip(np.rint(score), 1, 5)[order].astype(np.float32),
    )


def folds(
    ratings: Ratings, num_folds: int, seed: int
) -> Iterator[tuple[Ratings, Ratings]]:
    """Shuffles and yields (train, test); each rating is in one test part."""
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


class _Layout(NamedTuple):
    """The positions of the requested columns in a line.

    Attributes:
      delimiter: the separator of fields.
      columns: the positions of the columns among the fields.
      width: the number of fields of a line.
      first: 1 for a file with a header, else 0.
    """

    delimiter: str
    columns: list[int]
    width: int
    first: int


def _layout(line: str, wanted: Sequence[str], path: pathlib.Path) -> _Layout:
    """Infers the layout from the first line."""
    delimiter = next((d for d in ("\t", "::", ",") if d in line), "\t")
    fields = line.split(delimiter)
    is_typed = delimiter == "\t" and ":" in line
    if not is_typed and not (delimiter == "," and fields[0] in _CSV_NAMES):
        columns = [_COLUMNS.index(name) for name in wanted]
        return _Layout(delimiter, columns, max(len(fields), 3), 0)
    names = [field.partition(":")[0] for field in fields]
    names = [_CSV_NAMES.get(name, name) for name in names]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise DataError(
            f"the header has no column {' or '.join(missing)}; it has {names}",
            path=str(path),
            line=1,
        )
    columns = [names.index(name) for name in wanted]
    return _Layout(delimiter, columns, len(fields), 1)


def _rating(
    line: str,
    layout: _Layout,
    path: pathlib.Path,
    number: int,
) -> tuple[int, int, float]:
    fields = line.split(layout.delimiter)
    if len(fields) != layout.width:
        raise DataError(
            f"{len(fields)} {_SEPARATED[layout.delimiter]}-separated fields, and "
            f"{layout.width} are expected: {line!r}; the line may be cut off",
            path=str(path),
            line=number,
        )
    user, item, value = (fields[column] for column in layout.columns)
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
