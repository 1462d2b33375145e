"""The sealed form of a table: one run of bytes, laid out for lookups.

Little endian; each section begins at a multiple of 64 bytes.

    head     16 int64: see `Layout.head`
    notes    the table's name and its initial rows: see `_notes`
    pilots   uint16 [regions * buckets] of `perfect_hash.PerfectHash`
    keys     int64 [places] or, of strings, [places, 2], by place
    rows     [places] by place, as `row_format`; whole rows and lines of 64 bytes
    checks   the CRC-32C of all before: see `_checks`

An update of a live table has the keys that changed since the export, no notes,
and in place of the checks

    gone     uint8 [places]: 1 where the key has no row any more
    sum      int64: `checksum` of all bytes before; up to a line

A free place has the key of a row that lies elsewhere, so that no lookup finds
it. A string is there as two fingerprints of 63 bits, one of them by a secret
key; a table of n strings takes another string for one of its own with a
chance of n / 2^126.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tfembed import errors
from tfembed.export.initial_rows import KINDS, InitialRows
from tfembed.export.perfect_hash import PILOT_FACTOR, PerfectHash, Words, mix
from tfembed.export.row_format import NotStored, RowError, RowFormat
from tfembed.saved.checksum import crc32c
from tfembed.saved.formats.bundle import DTYPES
from tfembed.saved.saved_table import SavedTable, table_name

__all__ = [
    "HEAD_BYTES",
    "MAGIC",
    "SLICE_BYTES",
    "VERSION",
    "Fingerprints",
    "Layout",
    "SealedFile",
    "absent",
    "checksum",
    "seal",
]

_MAGIC_TEXT = b"tfsealed"
MAGIC = int.from_bytes(_MAGIC_TEXT, "little")
VERSION = 1
HEAD_BYTES = 128
LINE = 64
# The bytes of the file that share a checksum.
SLICE_BYTES = 16 << 20
# The bytes of rows that are put in order at once.
_WINDOW_BYTES = 8 << 20
# The row of a place that has none.
_FREE = (1 << 32) - 1

# The dtypes' numbers, those of TensorFlow.
_NUMBERS = {name: number for number, (name, _) in DTYPES.items()}

_Numbers = npt.NDArray[np.uint32]
# Strings to their fingerprints, int64 [n, 2], by a secret key of two numbers.
Fingerprints = Callable[[npt.NDArray[Any], tuple[int, int]], npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The places of a sealed table's sections.

    Attributes:
      num_rows: the number of keys.
      rows: the form of the rows.
      key_words: the int64s of a key: 1, or 2 where keys are strings.
      regions, buckets, places: as in `PerfectHash`. In a graph that reads
        them from the bytes they are int64 scalars.
      notes: the bytes of the notes, which say more of the table; none of an
        update.
      secret: the key of the fingerprints. It tells live tables from each
        other; zeros where keys are integers and the table is not live.
      is_update: whether the bytes are an update of a live table.
    """

    num_rows: int
    rows: RowFormat
    key_words: int
    regions: int
    buckets: int
    places: int
    notes: bytes
    secret: tuple[int, int] = (0, 0)
    is_update: bool = False

    @property
    def num_places(self) -> int:
        """The number of places, with and without a key."""
        return self.regions * self.places

    @property
    def at_pilots(self) -> int:
        """The first byte of the pilots."""
        return _up(HEAD_BYTES + len(self.notes))

    @property
    def at_keys(self) -> int:
        """The first byte of the keys."""
        return _up(self.at_pilots + 2 * self.regions * self.buckets)

    @property
    def at_rows(self) -> int:
        """The first byte of the rows."""
        return _up(self.at_keys + 8 * self.key_words * self.num_places)

    @property
    def row_section_bytes(self) -> int:
        """The bytes of the rows and of what fills their last line."""
        row_bytes = self.rows.row_bytes
        whole = math.lcm(LINE, row_bytes) if row_bytes else LINE
        return _up(self.num_places * row_bytes, whole)

    @property
    def at_checks(self) -> int:
        """The first byte of the checks, or of `gone` in an update."""
        return self.at_rows + self.row_section_bytes

    @property
    def at_sum(self) -> int:
        """The first byte of an update's last line."""
        return self.at_checks + _up(self.num_places)

    @property
    def num_bytes(self) -> int:
        """The bytes of the whole table."""
        if self.is_update:
            return self.at_sum + LINE
        num_slices = -(-self.at_checks // SLICE_BYTES)
        return self.at_checks + _up(4 * num_slices + 16)

    def head(self) -> npt.NDArray[np.int64]:
        """Returns the numbers that the bytes begin with."""
        return np.array(
            [
                MAGIC,
                VERSION,
                self.num_rows,
                self.rows.dim,
                _NUMBERS[self.rows.dtype],
                self.key_words,
                self.regions,
                self.buckets,
                self.places,
                self.at_pilots,
                self.at_keys,
                self.at_rows,
                self.num_bytes,
                *self.secret,
                self.rows.has_steps + 2 * self.is_update,
            ],
            "<i8",
        )


@dataclasses.dataclass(frozen=True)
class SealedFile:
    """A file with a sealed table.

    Attributes:
      layout: the places of its sections.
      error: the differences of its rows from those of the source.
      checksums: the CRC-32C of each slice of `SLICE_BYTES`.
    """

    layout: Layout
    error: RowError
    checksums: tuple[int, ...]


def seal(
    table: SavedTable,
    path: pathlib.Path,
    row_format: RowFormat,
    fingerprints: Fingerprints,
    missing: InitialRows,
    *,
    live: bool = False,
) -> SealedFile:
    """Writes a saved table to a file in the sealed form, from front to back.

    In memory are 8 bytes a key while the perfect hash is made, then 4 bytes a
    place, and some tens of megabytes. The file's keys are read three times, its
    rows once where they lie in the order of their keys' hashes, as tables are
    saved.

    Args:
      table: the table, which has keys.
      path: the file to write.
      row_format: the form of the rows.
      fingerprints: makes fingerprints of strings.
      missing: the rows of keys that are not there.
      live: whether the table takes updates, by the secret that it draws.

    Returns:
      What was written.

    Raises:
      tfembed.errors.CheckpointError: the table is damaged.
      tfembed.errors.ArgumentError: a row has no form in `row_format`.
    """
    try:
        keys = _Keys(table, fingerprints, live)
        found = PerfectHash.of(keys.hashes())
    except errors.ArgumentError as error:
        raise errors.CheckpointError(
            f"Table '{table.name}' cannot be sealed: {error}"
        ) from None
    layout = Layout(
        num_rows=table.num_rows,
        rows=row_format,
        key_words=keys.words,
        regions=found.regions,
        buckets=found.buckets,
        places=found.places,
        notes=_notes(table_name(table.name), missing),
        secret=keys.secret,
    )
    rows_at = _rows_by_place(keys, found)
    with path.open("wb") as file:
        written = _Slices(file)
        begin = layout.head().tobytes() + layout.notes
        begin = begin.ljust(layout.at_pilots, b"\0")
        written.write(np.frombuffer(begin, np.uint8))
        written.write(found.pilots.astype("<u2"))
        written.fill_up(layout.at_keys)
        for words in keys.by_place(rows_at, found):
            written.write(words)
        written.fill_up(layout.at_rows)
        lost = RowError()
        for stored, more in _stored_rows(table, rows_at, row_format):
            written.write(stored)
            lost += more
        written.fill_up(layout.at_checks)
        written.write(_checks(layout, written.checksums, crc32c(begin)))
    return SealedFile(layout, lost, tuple(written.checksums))


def _notes(name: str, missing: InitialRows) -> bytes:
    """Returns the notes of a table of this name and these initial rows."""
    numbers = (
        _NUMBERS[missing.dtype.name],
        KINDS.index(missing.kind),
        (missing.seed + (1 << 63)) % (1 << 64) - (1 << 63),
        len(missing.arguments),
        len(name.encode()),
    )
    return (
        np.array(numbers, "<i8").tobytes()
        + np.array(missing.arguments, "<f8").tobytes()
        + name.encode()
    )


def _checks(
    layout: Layout, checksums: list[int], head: int
) -> npt.NDArray[np.uint8]:
    """Returns the last section.

    Args:
      layout: the places of the others.
      checksums: the CRC-32C of each slice of the others.
      head: the CRC-32C of head and notes.
    """
    begin = np.array(checksums, "<u4").tobytes()
    size = layout.num_bytes - layout.at_checks
    begin = begin.ljust(size - 16, b"\0") + head.to_bytes(4, "little")
    own = crc32c(begin).to_bytes(4, "little")
    return np.frombuffer(begin + own + _MAGIC_TEXT, np.uint8)


def checksum(octets: npt.NDArray[np.uint8]) -> int:
    """Returns the sum of an update's words, each mixed with its number.

    It is for servers, which have no CRC-32C among their ops.
    """
    words = octets.view("<u8")
    total = np.uint64(0)
    step = _WINDOW_BYTES // 8
    for first in range(0, len(words), step):
        some = words[first : first + step]
        numbers = np.arange(first + 1, first + 1 + len(some), dtype=np.uint64)
        terms = some + numbers * np.uint64(PILOT_FACTOR)
        total += mix(terms.view(np.int64)).sum()
    return int(total.view(np.int64))


class _Keys:
    """The keys of a saved table as int64s, one or, of strings, two a key.

    Args:
      table: the table.
      fingerprints: makes fingerprints of strings.
      live: whether integers have a secret, too.

    Attributes:
      words: the number of int64s of a key.
      secret: the key of the fingerprints, which `hashes` draws.
    """

    def __init__(
        self, table: SavedTable, fingerprints: Fingerprints, live: bool
    ) -> None:
        self._table = table
        self._fingerprints = fingerprints
        self._is_text = table.key_dtype == "string"
        self._has_secret = self._is_text or live
        self.words = 2 if self._is_text else 1
        self.secret = (0, 0)

    def hashes(self) -> Words:
        """Returns the hashes of all keys, by a secret that tells them apart.

        Raises:
          tfembed.errors.ArgumentError: a key is there several times.
        """
        for _ in range(3 if self._is_text else 1):
            if self._has_secret:
                self.secret = (secrets.randbits(62), secrets.randbits(62))
            hashes = np.empty(self._table.num_rows, np.uint64)
            for first, words in self.stream():
                hashes[first : first + len(words)] = mix(words[:, 0])
            if not self._is_text or len(np.unique(hashes)) == len(hashes):
                return hashes
        raise errors.ArgumentError("it has a key several times.")

    def stream(self) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yields the keys in the file's order, after the number of the first."""
        first = 0
        for block in self._table.columns["keys"].stream():
            yield first, self._as_words(block)
            first += len(block)

    def by_place(
        self, rows_at: _Numbers, found: PerfectHash
    ) -> Iterator[npt.NDArray[np.int64]]:
        """Yields the keys in the order of their places.

        A free place has the key of the first row, which lies elsewhere.

        Args:
          rows_at: the row of each place.
          found: the perfect hash.
        """
        column = self._table.columns["keys"]
        if not self._table.num_rows:
            yield np.repeat(absent(found), self.words, axis=1)
            return
        first = self._as_words(column.take(np.zeros(1, np.int64)))
        for numbers in _windows(rows_at, 8 * self.words):
            own = numbers != _FREE
            words = np.repeat(first, len(numbers), axis=0)
            words[own] = self._as_words(column.take(numbers[own]))
            yield words.astype("<i8", copy=False)

    def _as_words(self, keys: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if self._is_text:
            prints: npt.NDArray[np.int64] = self._fingerprints(
                keys, self.secret
            )
            return prints
        return keys.astype(np.int64, copy=False)[:, None]


def _rows_by_place(keys: _Keys, found: PerfectHash) -> _Numbers:
    """Returns the number of the row of each place, or `_FREE`."""
    rows_at = np.full(found.num_places, _FREE, np.uint32)
    for first, words in keys.stream():
        places = found.places_of(np.ascontiguousarray(words[:, 0]))
        rows_at[places] = np.arange(first, first + len(words), dtype=np.uint32)
    return rows_at


def _stored_rows(
    table: SavedTable, rows_at: _Numbers, row_format: RowFormat
) -> Iterator[tuple[npt.NDArray[Any], RowError]]:
    """Yields the rows as stored in the order of their places, and their errors.

    Free places have zeros.
    """
    if not row_format.row_bytes:
        return
    for numbers in _windows(rows_at, row_format.row_bytes):
        own = numbers != _FREE
        rows = table.columns["rows"].take(numbers[own])
        try:
            stored, lost = row_format.encode(rows)
        except NotStored as missed:
            key = table.columns["keys"].take(numbers[own][missed.row :][:1])
            raise errors.ArgumentError(
                f"Table '{table.name}' has no form as `rows` = "
                f"{row_format.name!r}: the row of key {key.tolist()[0]!r} has "
                "NaN, infinity or a number that is too large. Give "
                "'as_trained', or remove the key."
            ) from None
        dtype = np.dtype(row_format.stored).newbyteorder("<")
        laid = np.zeros((len(numbers), row_format.row_elements), dtype)
        laid[own] = stored
        yield laid, lost


def _windows(
    rows_at: _Numbers, item_bytes: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Yields the rows of some megabytes of places at a time."""
    step = max(1, _WINDOW_BYTES // item_bytes)
    for first in range(0, len(rows_at), step):
        yield rows_at[first : first + step].astype(np.int64)


class _Slices:
    """Writes arrays into a file, and sums up each slice of it.

    Args:
      file: the file.

    Attributes:
      checksums: the CRC-32C of each slice of `SLICE_BYTES`.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = 0
        self.checksums: list[int] = []

    def write(self, values: npt.NDArray[Any]) -> None:
        """Writes the bytes of an array."""
        octets = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self._file.write(octets.data)
        while len(octets):
            begun = self._size % SLICE_BYTES
            some, octets = np.split(octets, [SLICE_BYTES - begun])
            before = self.checksums.pop() if begun else 0
            self.checksums.append(crc32c(some, before))
            self._size += len(some)

    def fill_up(self, size: int) -> None:
        """Writes zeros until the file has this many bytes."""
        self.write(np.zeros(size - self._size, np.uint8))


def absent(found: PerfectHash) -> npt.NDArray[np.int64]:
    """Returns for each place a key that lies at another one, [places, 1]."""
    candidates = np.arange(64, dtype=np.int64)
    at = found.places_of(candidates)
    return np.array(
        [[candidates[at != place][0]] for place in range(found.num_places)]
    )


def _up(size: int, unit: int = LINE) -> int:
    return -(-size // unit) * unit
