"""What each user watched, in order of time, and what came next.

From files of ratings with a timestamp: RecBole's `.inter` or MovieLens' `u.data`.
"""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

from tfembed.errors import DataError

_COLUMNS = ("user_id", "item_id", "timestamp")


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


def read_histories(path: str | pathlib.Path) -> dict[int, list[int]]:
    """The items of each user, oldest first.

    Args:
      path: tab-separated; columns by the names in a typed header, or without
        one user, item, rating and timestamp.

    Raises:
      DataError: the file is missing, unreadable, empty, without the columns, or
        has a bad line. It names the path and the line.
    """
    path = pathlib.Path(path)
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the ratings cannot be read: {error}", path=str(path)
        ) from error
    header = lines[0].split("\t") if lines and ":" in lines[0] else None
    columns = _columns(header, path)
    events = []
    for number, line in enumerate(
        lines[1 if header else 0 :], 2 if header else 1
    ):
        fields = line.split("\t")
        try:
            user, item = (int(fields[c]) for c in columns[:2])
            events.append((float(fields[columns[2]]), number, user, item))
        except (IndexError, ValueError):
            raise DataError(
                "user, item and timestamp must be numbers, separated by tabs; "
                f"got {line!r}",
                path=str(path),
                line=number,
            ) from None
    if not events:
        raise DataError("the file has no ratings", path=str(path))
    histories: dict[int, list[int]] = {}
    # By time; events of one moment stay in the file's order.
    for _, _, user, item in sorted(events):
        histories.setdefault(user, []).append(item)
    return histories


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


def _columns(header: list[str] | None, path: pathlib.Path) -> list[int]:
    if header is None:
        return [0, 1, 3]
    names = [field.partition(":")[0] for field in header]
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        raise DataError(
            f"the header has no column {' or '.join(missing)}; it has {names}",
            path=str(path),
            line=1,
        )
    return [names.index(name) for name in _COLUMNS]
