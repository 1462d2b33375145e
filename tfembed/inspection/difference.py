"""The difference of a table's rows between two files."""

from __future__ import annotations

import dataclasses
import heapq
import zlib
from collections.abc import Callable, Iterator

import numpy as np

from tfembed import errors
from tfembed.inspection.ranking import norms
from tfembed.saved.saved_table import Array, Key, SavedTable

__all__ = ["Difference", "compare"]

# The bytes of one table that are in memory at a time. A larger table is
# compared in parts, by a hash of its keys, and is read once for each part.
_PART_BYTES = 128 << 20
# The bytes of a key and its position: in sorted arrays, or in a dict of bytes.
_KEY_BYTES = {"string": 200}
_NUMBER_BYTES = 24
_MOST_PARTS = 1 << 12

_NO_KEYS = np.zeros(0, object)
_BINS = np.concatenate([[0.0], np.geomspace(1e-9, 1e9, 18 * 64 + 1), [np.inf]])


@dataclasses.dataclass
class Difference:
    """The changes of a table's keys and rows.

    Attributes:
      gone: the number of keys that only the first file has.
      come: the number of keys that only the second file has.
      kept: the number of keys that both files have.
      unchanged: the number of kept rows that are the same.
      some_gone, some_come: the smallest of the keys gone, and come.
      most_moved: (distance, key) of the rows that moved most, the largest
        first.
      moved: the number of rows by distance, in the bins of `quantile`; None
        where the rows cannot be compared.
    """

    gone: int = 0
    come: int = 0
    kept: int = 0
    unchanged: int = 0
    some_gone: list[Key] = dataclasses.field(default_factory=list)
    some_come: list[Key] = dataclasses.field(default_factory=list)
    most_moved: list[tuple[float, Key]] = dataclasses.field(
        default_factory=list
    )
    moved: Array | None = None

    def quantile(self, share: float) -> float:
        """Returns the distance that this share of the kept rows stays within.

        The result is at most 4 % too large: rows are counted in 64 bins per
        power of ten, for distances from 1e-9 to 1e9.
        """
        assert self.moved is not None
        counts = np.cumsum(self.moved)
        if not counts[-1]:
            return 0.0
        at = int(np.searchsorted(counts, share * counts[-1]))
        largest = self.most_moved[0][0] if self.most_moved else 0.0
        return min(float(_BINS[at]), largest)


def compare(
    before: SavedTable, after: SavedTable, *, count: int = 10
) -> Difference:
    """Compares two tables key by key, in bounded memory.

    Args:
      before, after: the same table in two files.
      count: the number of keys to name of each kind.

    Raises:
      tfembed.errors.CheckpointError: a file is damaged.
      tfembed.errors.DtypeError: the keys of only one table are strings, or
        both files have hashes in their place, by different secrets.
    """
    prints = {before.fingerprints, after.fingerprints} - {None}
    if len(prints) > 1:
        raise errors.DtypeError(
            f"The files have hashes in place of the keys of '{before.name}', "
            "each by a secret of its own: they cannot be compared. Compare each "
            "with the file that it was exported from."
        )
    is_text = before.key_dtype == "string"
    if is_text != (after.key_dtype == "string"):
        raise errors.DtypeError(
            f"Keys of '{before.name}' are {before.key_dtype}, and those of "
            f"'{after.name}' are {after.key_dtype}: they cannot be compared."
        )
    has_rows = (
        before.width == after.width
        and before.width > 0
        and "string" not in (before.dtype, after.dtype)
    )
    size = before.num_bytes.get("rows", 0) * has_rows
    size += before.num_rows * _KEY_BYTES.get(before.key_dtype, _NUMBER_BYTES)
    num_parts = min(max(1, -(-size // _PART_BYTES)), _MOST_PARTS)
    found = Difference(moved=np.zeros(len(_BINS), np.int64))
    if not has_rows:
        found.moved = None
    for part in range(num_parts):
        _compare_part(found, before, after, (part, num_parts), has_rows, count)
    found.most_moved.sort(key=lambda one: -one[0])
    return found


def _compare_part(
    found: Difference,
    before: SavedTable,
    after: SavedTable,
    part: tuple[int, int],
    has_rows: bool,
    count: int,
) -> None:
    """Adds the keys of one part to the counts."""
    prints = before.fingerprints or after.fingerprints
    chunks = list(_part_chunks(before, part, has_rows, prints))
    keys_before = np.concatenate([_NO_KEYS, *(keys for keys, _ in chunks)])
    if before.key_dtype != "string":
        keys_before = keys_before.astype(np.int64)
    rows_before = np.concatenate(
        [np.zeros((0, before.width if has_rows else 0), np.float32)]
        + [rows for _, rows in chunks]
    )
    del chunks
    positions = _Positions(keys_before)
    is_left = positions.are_last
    for keys, rows in _part_chunks(after, part, has_rows, prints):
        at = positions.find(keys)
        is_new = at < 0
        found.come += int(is_new.sum())
        _name_some(found.some_come, keys[is_new], count)
        kept = np.flatnonzero(~is_new)
        found.kept += len(kept)
        is_left[at[kept]] = False
        if has_rows:
            _add_moved(
                found, keys[kept], rows_before[at[kept]], rows[kept], count
            )
    found.gone += int(is_left.sum())
    _name_some(found.some_gone, keys_before[is_left], count)


class _Positions:
    """Finds keys in an array; the last position of a key that comes twice.

    Attributes:
      are_last: bool [n], whether `find` returns this position for its key.
    """

    def __init__(self, keys: Array) -> None:
        self._by_text: dict[bytes, int] | None = None
        if keys.dtype == object:
            self._by_text = dict(zip(keys, range(len(keys)), strict=True))
            last: Array = np.asarray(list(self._by_text.values()), np.int64)
        else:
            self._order = np.argsort(keys, kind="stable")
            self._sorted = keys[self._order]
            is_last = np.ones(len(keys), bool)
            is_last[:-1] = self._sorted[1:] != self._sorted[:-1]
            last = self._order[is_last]
        self.are_last = np.zeros(len(keys), bool)
        self.are_last[last] = True

    def find(self, keys: Array) -> Array:
        """Returns the positions of some keys; -1 for a missing key."""
        if self._by_text is not None:
            found = [self._by_text.get(key, -1) for key in keys]
            return np.asarray(found, np.int64)
        if not len(self._sorted):
            return np.full(len(keys), -1)
        # Searching keys in sorted order reads memory in order.
        order = np.argsort(keys)
        at = np.empty(len(keys), np.int64)
        at[order] = np.searchsorted(self._sorted, keys[order], side="right")
        at -= 1
        is_there = (at >= 0) & (self._sorted[at] == keys)
        return np.where(is_there, self._order[at], -1)


def _part_chunks(
    table: SavedTable,
    part: tuple[int, int],
    has_rows: bool,
    prints: Callable[[Array], Array] | None,
) -> Iterator[tuple[Array, Array]]:
    """Yields a table's keys and rows of part (i, number of parts)."""
    number, num_parts = part
    for chunk in table.chunks(rows=has_rows, slots=False, counters=False):
        keys = chunk.keys
        if prints is not None and table.fingerprints is None:
            keys = prints(keys)
        if num_parts == 1:
            yield keys, chunk.rows
            continue
        if keys.dtype == object:
            hashes = np.asarray([zlib.crc32(key) for key in keys])
        else:
            # Fibonacci hashing spreads keys that are multiples of a number.
            mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            hashes = mixed >> np.uint64(40)
        own = hashes % num_parts == number
        yield keys[own], chunk.rows[own]


def _name_some(named: list[Key], keys: Array, count: int) -> None:
    if len(keys) > count:
        keys = np.partition(keys, count - 1)[:count]
    named[:] = sorted([*named, *keys.tolist()])[:count]


def _add_moved(
    found: Difference, keys: Array, before: Array, after: Array, count: int
) -> None:
    differ = np.flatnonzero((before != after).any(1))
    before, after = (
        rows[differ].astype(np.float64) for rows in (before, after)
    )
    # A NaN differs from itself, but such a row has not moved.
    are_same = (before == after) | (np.isnan(before) & np.isnan(after))
    # An infinity less itself is no number, though such an element has not moved.
    moves = np.subtract(
        after, before, out=np.zeros_like(after), where=~are_same
    )
    differ, distances = differ[~are_same.all(1)], norms(moves)
    distances = distances[~are_same.all(1)]
    distances = np.where(np.isnan(distances), np.inf, distances)
    unchanged = len(keys) - len(differ)
    found.unchanged += unchanged
    assert found.moved is not None
    found.moved[0] += unchanged
    found.moved += np.bincount(
        np.searchsorted(_BINS, distances), minlength=len(_BINS)
    )
    at: Array = np.arange(len(distances))
    if len(at) > count:
        at = np.argpartition(-distances, count - 1)[:count]
    found.most_moved = heapq.nlargest(
        count,
        [
            *found.most_moved,
            *zip(
                distances[at].tolist(), keys[differ[at]].tolist(), strict=True
            ),
        ],
        key=lambda one: one[0],
    )
