"""The sealed form of a table: one run of bytes, laid out for lookups.

Little endian; each section begins at a multiple of 64 bytes.

    head     16 int64: see `_HEAD`
    pilots   uint16 [regions * buckets] of `perfect_hash.PerfectHash`
    keys     int64 [places] or, of strings, [places, 2], by place
    rows     [places] by place, as `row_format`; whole rows and lines of 64 bytes

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
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tfembed import errors
from tfembed.export.perfect_hash import PerfectHash
from tfembed.export.row_format import NotStored, RowError, RowFormat
from tfembed.inspection.bundle import DTYPES
from tfembed.inspection.saved_table import SavedTable

__all__ = ["Layout", "seal"]

_MAGIC = int.from_bytes(b"tfsealed", "little")
_VERSION = 1
_HEAD_BYTES = 128
_LINE = 64

# Strings to their fingerprints, int64 [n, 2], by a secret key of two numbers.
Fingerprints = Callable[[npt.NDArray[Any], tuple[int, int]], npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The places of a sealed table's sections.

    Attributes:
      num_rows: the number of keys.
      rows: the form of the rows.
      key_words: the int64s of a key: 1, or 2 where keys are strings.
      regions, buckets, places: as in `PerfectHash`.
      secret: the key of the fingerprints; zeros where keys are integers.
    """

    num_rows: int
    rows: RowFormat
    key_words: int
    regions: int
    buckets: int
    places: int
    secret: tuple[int, int] = (0, 0)

    @property
    def num_places(self) -> int:
        """The number of places, with and without a key."""
        return self.regions * self.places

    @property
    def at_pilots(self) -> int:
        """The first byte of the pilots."""
        return _HEAD_BYTES

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
        whole = math.lcm(_LINE, row_bytes) if row_bytes else _LINE
        return _up(self.num_places * row_bytes, whole)

    @property
    def num_bytes(self) -> int:
        """The bytes of the whole table."""
        return self.at_rows + self.row_section_bytes

    def head(self) -> npt.NDArray[np.int64]:
        """Returns the numbers that the bytes begin with."""
        numbers = {name: number for number, (name, _) in DTYPES.items()}
        return np.array(
            [
                _MAGIC,
                _VERSION,
                self.num_rows,
                self.rows.dim,
                numbers[self.rows.dtype],
                self.key_words,
                self.regions,
                self.buckets,
                self.places,
                self.at_pilots,
                self.at_keys,
                self.at_rows,
                self.num_bytes,
                *self.secret,
                int(self.rows.has_steps),
            ],
            "<i8",
        )


def seal(
    table: SavedTable,
    path: pathlib.Path,
    row_format: RowFormat,
    fingerprints: Fingerprints,
) -> tuple[Layout, RowError]:
    """Writes a saved table to a file in the sealed form.

    The rows are read and written a block at a time. All keys are in memory.

    Args:
      table: the table, which has keys.
      path: the file to write.
      row_format: the form of the rows.
      fingerprints: makes fingerprints of strings.

    Returns:
      The layout, and how far the rows are from those of the table.

    Raises:
      tfembed.errors.CheckpointError: the table is damaged.
      tfembed.errors.ArgumentError: a row has no form in `row_format`.
    """
    try:
        words, secret = _key_words(table, fingerprints)
        found = PerfectHash.of(np.ascontiguousarray(words[:, 0]))
    except errors.ArgumentError as error:
        raise errors.CheckpointError(
            f"Table '{table.name}' cannot be sealed: {error}"
        ) from None
    layout = Layout(
        num_rows=len(words),
        rows=row_format,
        key_words=words.shape[1],
        regions=found.regions,
        buckets=found.buckets,
        places=found.places,
        secret=secret,
    )
    laid: Any = np.memmap(path, np.uint8, "w+", shape=(layout.num_bytes,))
    laid[:_HEAD_BYTES] = layout.head().view(np.uint8)
    pilots = found.pilots.astype("<u2").view(np.uint8)
    laid[layout.at_pilots : layout.at_pilots + len(pilots)] = pilots
    places = found.places_of(np.ascontiguousarray(words[:, 0]))
    keys = _section(
        laid, layout.at_keys, "<i8", (layout.num_places, layout.key_words)
    )
    keys[:] = words[0] if len(words) else _absent(found)
    keys[places] = words
    rows = _section(
        laid,
        layout.at_rows,
        np.dtype(row_format.stored).newbyteorder("<"),
        (layout.num_places, row_format.row_elements),
    )
    first, lost = 0, RowError()
    for chunk in table.chunks(slots=False, counters=False):
        try:
            stored, more = row_format.encode(chunk.rows)
        except NotStored as missed:
            raise errors.ArgumentError(
                f"Table '{table.name}' has no form as `rows` = "
                f"{row_format.name!r}: the row of key {chunk.keys.tolist()[missed.row]!r} "
                "has NaN, infinity or a number that is too large. Give "
                "'as_trained', or remove the key."
            ) from None
        rows[places[first : first + len(chunk)]] = stored
        first, lost = first + len(chunk), lost + more
    laid.flush()
    return layout, lost


def _key_words(
    table: SavedTable, fingerprints: Fingerprints
) -> tuple[npt.NDArray[np.int64], tuple[int, int]]:
    """Returns the keys as int64 [n, 1] or [n, 2], and the secret of prints."""
    is_text = table.key_dtype == "string"

    def read(secret: tuple[int, int]) -> npt.NDArray[np.int64]:
        words: list[npt.NDArray[Any]] = [
            np.zeros((0, 2 if is_text else 1), np.int64)
        ]
        for chunk in table.chunks(rows=False, slots=False, counters=False):
            keys = chunk.keys
            words.append(
                fingerprints(keys, secret) if is_text else keys[:, None]
            )
        return np.concatenate(words)

    if not is_text:
        return read((0, 0)), (0, 0)
    for _ in range(3):
        secret = (secrets.randbits(62), secrets.randbits(62))
        words = read(secret)
        if len(np.unique(words[:, 0])) == len(words):
            return words, secret
    raise errors.ArgumentError("it has a key several times.")


def _absent(found: PerfectHash) -> npt.NDArray[np.int64]:
    """Returns for each place a key that lies at another one, [places, 1]."""
    candidates = np.arange(64, dtype=np.int64)
    at = found.places_of(candidates)
    return np.array(
        [[candidates[at != place][0]] for place in range(found.num_places)]
    )


def _section(laid: Any, at: int, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Returns a view of `laid` from the byte `at` on."""
    return np.ndarray(shape, dtype, buffer=laid, offset=at)


def _up(size: int, unit: int = _LINE) -> int:
    return -(-size // unit) * unit
