"""Reads sealed tables: docs/formats/sealed_table.md, and nothing but that page.

`tfembed.export` writes them. Keys and rows lie by place, and some places are
free: they have the key of another place. Such a place is left out here.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from tfembed import errors
from tfembed.saved.column import Column
from tfembed.saved.formats.bundle import DTYPES
from tfembed.saved.formats.fingerprints import Fingerprints
from tfembed.saved.saved_table import Array, SavedTable

__all__ = ["SEALED", "sealed_table"]

# What the name of a sealed table's tensor has behind the table's path.
SEALED = "/sealed/.ATTRIBUTES/VARIABLE_VALUE"

_MAGIC = int.from_bytes(b"tfsealed", "little")
_HEAD_BYTES = 128
_LINE = 64
_SLICE_BYTES = 16 << 20  # What shares a checksum.
_BLOCK_BYTES = 4 << 20
# A part of a file up to this size is read, and compared, as a whole.
_WHOLE_BYTES = 32 << 20

_PILOT_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SPREAD_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_MIX_FACTORS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_33, _32 = np.uint64(33), np.uint64(32)


def sealed_table(path: str, name: str, column: Column) -> SavedTable:
    """Returns the table that a tensor of bytes is.

    Args:
      path: the path of the table in the file.
      name: the name of the table.
      column: the tensor, uint8 [bytes].

    Raises:
      tfembed.errors.CheckpointError: the bytes are damaged, or of a later
        format.
    """
    return _SealedBytes(path, column).table(name)


@dataclasses.dataclass(frozen=True)
class _Head:
    """The numbers that a sealed table begins with, in their order."""

    magic: int
    version: int
    num_rows: int
    dim: int
    dtype: int
    key_words: int
    regions: int
    buckets: int
    places: int
    at_pilots: int
    at_keys: int
    at_rows: int
    num_bytes: int
    secret: int
    secret_2: int
    form: int

    @property
    def all_places(self) -> int:
        """The number of places of all regions."""
        return self.regions * self.places

    @property
    def row_bytes(self) -> int:
        """The number of bytes of a row."""
        if self.form:
            return 4 + self.dim
        return DTYPES[self.dtype][1] * self.dim

    def fault(self, size: int, notes: list[int]) -> str | None:
        """Returns the reason why no table of `size` bytes has this head.

        Args:
          size: the number of bytes.
          notes: the numbers behind the head.
        """
        if self.magic != _MAGIC:
            return "it does not begin with 'tfsealed'"
        if self.version != 1:
            return f"its version is {self.version}; this release reads 1"
        if (
            self.dtype not in DTYPES
            or (not DTYPES[self.dtype][1] and self.dim)
            or self.key_words not in (1, 2)
            or self.form not in (0, 1)
            or (self.form and DTYPES[self.dtype][0] != "float32")
        ):
            return "it has keys or rows of an unknown form"
        if (
            min(self.regions, self.buckets, self.places) < 1
            or self.regions & (self.regions - 1)
            or self.regions * self.buckets >= 1 << 32
            or self.all_places >= 1 << 32
            or not 0 <= self.num_rows <= self.all_places
            or not 0 <= self.dim < 1 << 40
        ):
            return "its numbers of places are none"
        _, _, _, arguments, name_bytes = notes
        if min(arguments, name_bytes) < 0:
            return "its notes are none"
        at_pilots = _up(_HEAD_BYTES + 40 + 8 * arguments + name_bytes)
        at_keys = _up(at_pilots + 2 * self.regions * self.buckets)
        at_rows = _up(at_keys + 8 * self.key_words * self.all_places)
        whole = math.lcm(_LINE, self.row_bytes or 1)
        end = at_rows + _up(self.all_places * self.row_bytes, whole)
        end += _up(4 * -(-end // _SLICE_BYTES) + 16)
        begins = (self.at_pilots, self.at_keys, self.at_rows, self.num_bytes)
        if begins != (at_pilots, at_keys, at_rows, end):
            return "its sections do not begin where its numbers say"
        if size != end:
            return f"it has {size} bytes of {end}"
        return None


class _SealedBytes:
    """The bytes of a sealed table, which are read on demand.

    Args:
      path: the path of the table.
      column: the tensor.
    """

    def __init__(self, path: str, column: Column) -> None:
        self._path = path
        self._column = column
        self._firsts = [part.first_row for part in column.parts]
        self._checked: set[int] = set()
        self._held: tuple[int, bytes] = (-1, b"")
        self._is_own: Array | None = None
        if column.rows < _HEAD_BYTES + 40:
            raise self._damaged("it has no head")
        numbers = self._numbers("<i8", 0, 21).tolist()
        self._head = _Head(*numbers[:16])
        if fault := self._head.fault(column.rows, numbers[16:]):
            raise self._damaged(fault)
        self._rows = Column(
            column.name,
            DTYPES[self._head.dtype][0],
            (self._head.num_rows, self._head.dim),
            column.parts,
            self._row_blocks,
        )

    def table(self, name: str) -> SavedTable:
        """Returns the table, whose keys and rows are read later."""
        head = self._head
        is_text = head.key_words == 2
        keys = Column(
            self._column.name,
            "string" if is_text else "int64",
            (head.num_rows,),
            self._column.parts,
            self._key_blocks,
        )
        return SavedTable(
            name=name,
            path=self._path,
            key_dtype=keys.dtype,
            dtype=self._rows.dtype,
            width=head.dim,
            num_rows=head.num_rows,
            columns={"keys": keys, "rows": self._rows},
            num_bytes={
                "keys": head.at_rows,
                "rows": head.num_bytes - head.at_rows,
            },
            fingerprints=(
                Fingerprints(head.secret, head.secret_2) if is_text else None
            ),
        )

    def _key_blocks(self) -> Iterator[Array]:
        for first, own in self._own_places(8 * self._head.key_words):
            keys = self._keys(first, len(own))[own]
            if self._head.key_words == 1:
                yield keys[:, 0]
            else:
                yield Fingerprints.texts_of(keys[:, 0])

    def _row_blocks(self) -> Iterator[Array]:
        head = self._head
        for first, own in self._own_places(head.row_bytes):
            size = len(own) * head.row_bytes
            piece = self._read(head.at_rows + first * head.row_bytes, size)
            if not head.form:
                yield self._rows.numbers(piece)[own]
                continue
            rows = np.frombuffer(piece, np.uint8).reshape(len(own), -1)[own]
            scales = np.ascontiguousarray(rows[:, :4]).view("<f2")
            least, step = scales.astype(np.float32).T[:, :, None]
            with np.errstate(over="ignore", invalid="ignore"):
                yield least + step * rows[:, 4:].astype(np.float32)

    def _own_places(self, item_bytes: int) -> Iterator[tuple[int, Array]]:
        """Yields runs of places: the first one, and which have their own key.

        Args:
          item_bytes: the bytes that the caller reads for each place.

        Raises:
          tfembed.errors.CheckpointError: the table has more or fewer keys
            than its head says.
        """
        if self._is_own is None:
            self._is_own = self._find_own()
        step = max(1, _BLOCK_BYTES // max(8, item_bytes))
        for first in range(0, self._head.all_places, step):
            yield first, self._is_own[first : first + step]

    def _find_own(self) -> Array:
        head = self._head
        count = head.regions * head.buckets
        pilots = self._numbers("<u2", head.at_pilots, count)
        is_own = np.zeros(head.all_places, bool)
        step = _BLOCK_BYTES // 32
        for first in range(0, head.all_places, step):
            n = min(step, head.all_places - first)
            places = self._places(self._keys(first, n)[:, 0], pilots)
            is_own[first : first + n] = places == np.arange(first, first + n)
        if (found := int(is_own.sum())) != head.num_rows:
            raise self._damaged(
                f"{found} keys are in their places, of {head.num_rows}"
            )
        return is_own

    def _places(self, keys: Array, pilots: Array) -> Array:
        """Returns the place of each key, int64 [n]."""
        head = self._head
        hashes = np.ascontiguousarray(keys).view(np.uint64)
        for factor in _MIX_FACTORS:
            hashes = (hashes ^ hashes >> _33) * factor
        hashes = hashes ^ hashes >> _33
        top = hashes >> _32
        buckets = top * np.uint64(head.regions * head.buckets) >> _32
        pilot = pilots[buckets.astype(np.int64)].astype(np.uint64)
        at = (hashes ^ pilot * _PILOT_FACTOR) * _SPREAD_FACTOR >> _32
        if head.regions > 1:
            bits = head.regions.bit_length() - 1
            kept = np.uint64((1 << 32) - (1 << 32 - bits))
            at = top & kept | at >> np.uint64(bits)
        at = at * np.uint64(head.all_places) >> _32
        found: Array = at.astype(np.int64)
        return found

    def _keys(self, first: int, n: int) -> Array:
        words = self._head.key_words
        at = self._head.at_keys + 8 * words * first
        return self._numbers("<i8", at, n * words).reshape(n, words)

    def _numbers(self, dtype: str, at: int, count: int) -> Array:
        size = np.dtype(dtype).itemsize * count
        return np.frombuffer(self._read(at, size), dtype)

    def _read(self, at: int, size: int) -> bytes:
        """Returns bytes of the tensor, once their part has its checksum."""
        pieces = []
        while size > 0:
            number = bisect.bisect_right(self._firsts, at) - 1
            part = self._column.parts[number]
            begin = at - part.first_row
            some = min(size, part.rows - begin)
            if part.size <= _WHOLE_BYTES:
                if self._held[0] != number:
                    self._held = number, self._part(number).tobytes()
                pieces.append(self._held[1][begin : begin + some])
            else:
                if number not in self._checked:
                    self._one_part(number).check()
                    self._checked.add(number)
                pieces.append(part.file.read(part.offset + begin, some))
            at, size = at + some, size - some
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _part(self, number: int) -> Array:
        return np.concatenate(list(self._one_part(number).stream()))

    def _one_part(self, number: int) -> Column:
        part = self._column.parts[number]
        whole = dataclasses.replace(part, first_row=0)
        return Column(self._column.name, "uint8", (part.rows,), [whole])

    def _damaged(self, what: str) -> errors.CheckpointError:
        return errors.CheckpointError(
            f"Sealed table '{self._path}' is damaged: {what}."
        )


def _up(size: int, unit: int = _LINE) -> int:
    return -(-size // unit) * unit
