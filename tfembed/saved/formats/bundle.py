"""Reads the index of a checkpoint, `<prefix>.index`, and finds tensors by it.

TensorFlow writes a checkpoint as a "tensor bundle": data files, and an index
in LevelDB's table format with a header and an entry (a BundleEntryProto) for
each tensor or slice. As in `cc/kernels/checkpoint_index.h`, each number of the
index is checked against the bytes that exist before it is used.

The reader is in Python: the core reads no files, and the kernels that do need
TensorFlow, which takes five seconds to import. Compiled code would save
nothing: an index has some hundred entries, and NumPy reads the rows.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Iterator

from tfembed import errors
from tfembed.saved import checksum, file_bytes
from tfembed.saved.column import Column, Encoding, Part
from tfembed.saved.file_bytes import FileBytes, signed, take_varint

__all__ = ["DTYPES", "MAGIC", "Bundle", "Entry", "slice_name"]

# Limits beyond which an index is refused, as in
# cc/kernels/checkpoint_index.cc.
_MOST_BYTES = 1 << 30
_MOST_ENTRY_BYTES = 2 << 20
_MORE_NAME_BYTES = 32 << 20

_FOOTER_BYTES = 48
MAGIC = 0xDB4775248B80FB57  # The last bytes of an index.
_ALL = (1 << 64) - 1  # The length of an extent that covers its whole dimension.
_TRAILER_BYTES = 5  # After each block: compression (1 byte), CRC-32C (4).

# TensorFlow's dtype numbers, with the name and the bytes of an element.
DTYPES = {
    1: ("float32", 4),
    2: ("float64", 8),
    3: ("int32", 4),
    4: ("uint8", 1),
    5: ("int16", 2),
    6: ("int8", 1),
    7: ("string", 0),
    8: ("complex64", 8),
    9: ("int64", 8),
    10: ("bool", 1),
    11: ("qint8", 1),
    12: ("quint8", 1),
    13: ("qint32", 4),
    14: ("bfloat16", 2),
    15: ("qint16", 2),
    16: ("quint16", 2),
    17: ("uint16", 2),
    18: ("complex128", 16),
    19: ("float16", 2),
    21: ("variant", 0),
    22: ("uint32", 4),
    23: ("uint64", 8),
    24: ("float8_e5m2", 1),
    25: ("float8_e4m3fn", 1),
    29: ("int4", 1),
    30: ("uint4", 1),
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One entry of an index, checked against its data file.

    Attributes:
      name: the name of the tensor.
      dtype: TensorFlow's name of the dtype.
      shape: the shape of the tensor, or of the slice.
      file: the number of the data file, from 0.
      offset, size: the position and number of the bytes in the file.
      crc: the checksum of the bytes.
      slices: for each slice of the tensor and each dimension, the first
        element and the number of elements (-1: the whole dimension). None
        where the entry has the tensor's own bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: int
    offset: int
    size: int
    crc: int
    slices: tuple[tuple[tuple[int, int], ...], ...] | None

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


class Bundle:
    """The tensors of a checkpoint, by name.

    Args:
      index: the bytes of the index.
      data: opens a data file, by its number and the number of files.

    Raises:
      tfembed.errors.CheckpointError: the index is damaged or of a later format.
    """

    def __init__(
        self, index: FileBytes, data: Callable[[int, int], FileBytes]
    ) -> None:
        self.index = index
        self._data = data
        self._files: dict[int, FileBytes] = {}
        self._claimed: dict[int, int] = {}
        self._entries: dict[bytes, Entry] = {}
        if index.size > _MOST_BYTES:
            raise errors.CheckpointError(
                f"'{index.name}' has {index.size} bytes, more than an index has."
            )
        try:
            texts = dict(_index_texts(index.read(0, index.size)))
            self.num_files = _files_by_header(texts.pop(b"", None))
        except errors.CheckpointError as error:
            if index.name in str(error):
                raise
            raise self._damaged(str(error)) from None
        self._texts: dict[bytes, bytes] = texts
        self._names = [name for name in texts if not name.startswith(b"\0")]

    def names(self, prefix: str = "") -> list[str]:
        """Returns the names that begin with `prefix`, sorted as bytes."""
        begin = prefix.encode()
        found = []
        for i in range(
            bisect.bisect_left(self._names, begin), len(self._names)
        ):
            if not self._names[i].startswith(begin):
                break
            found.append(self._names[i].decode("utf-8", "backslashreplace"))
        return found

    def __contains__(self, name: str) -> bool:
        return name.encode() in self._texts

    def entry(self, name: str) -> Entry:
        """Returns the entry of the tensor `name`.

        Raises:
          tfembed.errors.CheckpointError: the index has no such tensor, or the
            entry does not fit the files.
        """
        return self._entry(name.encode())

    def column(self, name: str) -> Column:
        """Returns a tensor of rows; its elements are read later, part by part.

        Raises:
          tfembed.errors.CheckpointError: the index has no such tensor, or its
            entry or slices do not fit the files.
        """
        entry = self.entry(name)
        if entry.slices is None:
            parts = [self._part(entry, 0)]
        else:
            parts = list(self._slices(name, entry))
        return Column(name, entry.dtype, entry.shape, parts)

    def stored_bytes(self, name: str) -> int:
        """Returns the bytes of a tensor in the files, in slices of any form.

        Raises:
          tfembed.errors.CheckpointError: as in `column`.
        """
        entry = self.entry(name)
        if entry.slices is None:
            return entry.size
        slices = [self._slice(name, entry, one)[0] for one in entry.slices]
        elements = sum(stored.elements for stored in slices)
        if elements != entry.elements:
            raise self._damaged(
                f"tensor '{name}': its slices have {elements} elements of "
                f"{entry.elements}"
            )
        return sum(stored.size for stored in slices)

    def scalar(self, name: str) -> bytes | int | float | None:
        """Returns the element of a tensor with one, not sliced; else None."""
        if name not in self:
            return None
        entry = self.entry(name)
        if entry.elements != 1 or entry.slices is not None:
            return None
        for block in self.column(name).stream():
            value = block.reshape(-1)[0]
            return value if isinstance(value, bytes) else value.item()
        return None

    def stored_parts(self) -> Iterator[Column]:
        """Yields the columns of all stored tensors, to check every byte.

        Raises:
          tfembed.errors.CheckpointError: as in `column`.
        """
        for raw in self._texts:
            entry = self._entry(raw)
            if entry.slices is None:
                part = self._part(entry, 0)
                yield Column(entry.name, entry.dtype, entry.shape, [part])
            elif _cuts_rows_or_columns(entry):
                for _ in self._slices(entry.name, entry):
                    pass
            else:
                self.stored_bytes(entry.name)

    def _entry(self, raw: bytes) -> Entry:
        if raw in self._entries:
            return self._entries[raw]
        name = raw.decode("utf-8", "backslashreplace")
        if raw not in self._texts:
            raise errors.CheckpointError(
                f"There is no tensor '{name}' in '{self.index.name}'."
            )
        try:
            entry = _parse_entry(name, self._texts[raw])
            self._check(entry)
        except errors.CheckpointError as error:
            if str(error).startswith(("'", "There is")):
                raise
            raise self._damaged(f"tensor '{name}': {error}") from None
        self._entries[raw] = entry
        return entry

    def _check(self, entry: Entry) -> None:
        if entry.slices is not None:
            return
        size_of = dict(DTYPES.values())[entry.dtype]
        least = entry.elements * size_of
        if size_of and least != entry.size:
            raise errors.CheckpointError(
                f"its {entry.elements} elements cannot have {entry.size} bytes"
            )
        # Each string takes a byte for its length at least; all share a
        # checksum.
        if not size_of and entry.elements and entry.size < entry.elements + 4:
            raise errors.CheckpointError(
                f"its {entry.elements} strings cannot have {entry.size} bytes"
            )
        if not 0 <= entry.file < self.num_files:
            raise errors.CheckpointError(
                f"it is in file {entry.file} of {self.num_files}"
            )
        file = self._file(entry.file)
        if entry.offset < 0 or not 0 <= entry.size <= file.size - entry.offset:
            raise errors.CheckpointError(
                f"it has {entry.size} bytes at {entry.offset}, and "
                f"'{file.name}' has {file.size}"
            )
        claimed = self._claimed.get(entry.file, 0) + entry.size
        if claimed > file.size:
            raise errors.CheckpointError(
                f"its bytes in '{file.name}' overlap those of other tensors"
            )
        self._claimed[entry.file] = claimed

    def _file(self, number: int) -> FileBytes:
        if number not in self._files:
            self._files[number] = self._data(number, self.num_files)
        return self._files[number]

    def _part(self, entry: Entry, first_row: int) -> Part:
        return Part(
            file=self._file(entry.file),
            offset=entry.offset,
            size=entry.size,
            crc=entry.crc,
            first_row=first_row,
            rows=entry.shape[0] if entry.shape else 1,
            encoding=(
                Encoding.BUNDLE_STRINGS
                if entry.dtype == "string"
                else Encoding.OBJECTS
                if entry.dtype == "variant"
                else Encoding.NUMBERS
            ),
        )

    def _slices(self, name: str, entry: Entry) -> Iterator[Part]:
        assert entry.slices is not None
        if not _cuts_rows_or_columns(entry):
            raise errors.UnsupportedError(
                f"Tensor '{name}' of '{self.index.name}' has rank "
                f"{len(entry.shape)} and is saved in pieces of rows, which this "
                "reader does not put together. tf.train.load_checkpoint reads it."
            )
        row, column, end = 0, 0, 0
        # The slice of the first row wins; slices without elements are skipped.
        for extents in sorted(entry.slices):
            stored, own = self._slice(name, entry, extents)
            if not stored.elements:
                continue
            (first_row, rows), *cut = own
            if first_row != row or (column and first_row + rows != end):
                raise self._damaged(
                    f"tensor '{name}': a slice has the {rows} rows from "
                    f"{first_row} on, and the one before ends at row {row}"
                )
            end = row + rows
            if len(cut) != 1 or cut[0] == (0, entry.shape[1]):
                yield self._part(stored, row)
                row = end
                continue
            first, columns = cut[0]
            if first != column:
                raise self._damaged(
                    f"tensor '{name}': a slice begins at column {first}, and "
                    f"the one before ends at column {column}"
                )
            part = self._part(stored, row)
            yield dataclasses.replace(part, columns=columns)
            column += columns
            if column == entry.shape[1]:
                row, column = end, 0
        if entry.elements and (row, column) != (entry.shape[0], 0):
            raise self._damaged(
                f"tensor '{name}': its slices end at row {row} of "
                f"{entry.shape[0]}"
            )

    def _slice(
        self, name: str, whole: Entry, extents: tuple[tuple[int, int], ...]
    ) -> tuple[Entry, list[tuple[int, int]]]:
        """Returns a slice's entry, and its extents without lengths of -1."""
        if len(extents) != len(whole.shape):
            raise self._damaged(
                f"tensor '{name}': a slice has {len(extents)} dimensions in "
                f"place of {len(whole.shape)}"
            )
        own = []
        for (start, length), size in zip(extents, whole.shape, strict=True):
            length = size if length < 0 else length
            if not 0 <= start <= size or length > size - start:
                raise self._damaged(
                    f"tensor '{name}': a slice of {length} elements from "
                    f"{start} on exceeds a dimension of {size}"
                )
            own.append((start, length))
        raw = slice_name(name.encode(), extents)
        if raw not in self._texts:
            raise self._damaged(f"tensor '{name}': a slice of it is missing")
        stored = self._entry(raw)
        if (
            stored.slices is not None
            or stored.dtype != whole.dtype
            or list(stored.shape) != [length for _, length in own]
        ):
            raise self._damaged(
                f"tensor '{name}': a slice has another dtype or shape"
            )
        return stored, own

    def _damaged(self, what: str) -> errors.CheckpointError:
        return errors.CheckpointError(
            f"'{self.index.name}' is damaged or cut off: {what}."
        )


def _cuts_rows_or_columns(entry: Entry) -> bool:
    """Whether all slices have whole rows, or are of a matrix."""
    if not entry.shape:
        return False
    return len(entry.shape) == 2 or all(
        length in (-1, size)
        for extents in entry.slices or ()
        for (_, length), size in zip(extents[1:], entry.shape[1:], strict=False)
    )


def _index_texts(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields sorted (name, entry) pairs of an index; errors lack its name."""
    if len(data) < _FOOTER_BYTES:
        raise errors.CheckpointError("it is too short for an index")
    footer = data[-_FOOTER_BYTES:]
    if int.from_bytes(footer[-8:], "little") != MAGIC:
        raise errors.CheckpointError("its footer is not that of an index")
    _, at = take_varint(footer, 0)
    _, at = take_varint(footer, at)
    place, at = take_varint(footer, at)
    size, _ = take_varint(footer, at)
    last: bytes | None = None
    name_bytes = 0
    for last_of_block, handle in _block_entries(_block(data, place, size)):
        place, at = take_varint(handle, 0)
        size, _ = take_varint(handle, at)
        for name, text in _block_entries(_block(data, place, size)):
            name_bytes += len(name)
            if last is not None and name <= last:
                raise errors.CheckpointError("its entries are out of order")
            if len(text) > _MOST_ENTRY_BYTES:
                raise errors.CheckpointError(
                    f"an entry has {len(text)} bytes; at most "
                    f"{_MOST_ENTRY_BYTES} are read"
                )
            if name_bytes > len(data) + _MORE_NAME_BYTES:
                raise errors.CheckpointError("its names are too long")
            last = name
            yield name, text
        if last is not None and last > last_of_block:
            raise errors.CheckpointError(
                "its index of blocks does not match the blocks"
            )


def _block(data: bytes, place: int, size: int) -> bytes:
    """Returns the content of a block, after a check of its checksum."""
    if place + size + _TRAILER_BYTES > len(data) - _FOOTER_BYTES:
        raise errors.CheckpointError(
            f"a block of {size} bytes at {place} exceeds the {len(data)} bytes "
            "of the file"
        )
    end = place + size
    saved = int.from_bytes(data[end + 1 : end + 5], "little")
    if checksum.crc32c(data[place : end + 1]) != checksum.unmask(saved):
        raise errors.CheckpointError("the checksum of a block is wrong")
    if data[end]:
        raise errors.CheckpointError(
            "a block is compressed, which TensorFlow never does"
        )
    return data[place:end]


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the (name, entry) pairs of a block."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    if len(block) < 8 or not restarts or end < 0:
        raise errors.CheckpointError("a block cannot be read")
    at, name = 0, b""
    while at < end:
        shared, at = take_varint(block, at)
        more, at = take_varint(block, at)
        size, at = take_varint(block, at)
        if shared > len(name) or more + size > end - at:
            raise errors.CheckpointError("a block cannot be read")
        name = name[:shared] + block[at : at + more]
        at += more
        yield name, block[at : at + size]
        at += size


def _files_by_header(text: bytes | None) -> int:
    """Returns the number of data files, by a BundleHeaderProto."""
    if text is None:
        raise errors.CheckpointError("it has no header")
    header = dict(file_bytes.fields(text))
    num_files, byte_order = header.get(1, 0), header.get(2, 0)
    if isinstance(num_files, bytes) or not 0 < num_files < 1 << 31:
        raise errors.CheckpointError(f"it says that it has {num_files!r} files")
    if byte_order != 0:
        raise errors.CheckpointError(
            "it was written on a machine of another byte order"
        )
    version = header.get(3, b"")
    if isinstance(version, bytes):
        least = dict(file_bytes.fields(version)).get(2, 0)
        if isinstance(least, int) and least > 1:
            raise errors.CheckpointError(
                f"its format is version {int(least)}; this release reads version 1"
            )
    return num_files


def _parse_entry(name: str, text: bytes) -> Entry:
    """Parses a BundleEntryProto."""
    numbers = {1: 0, 3: 0, 4: 0, 5: 0, 6: 0}
    shape: tuple[int, ...] = ()
    slices = []
    for number, value in file_bytes.fields(text):
        if number == 2 and isinstance(value, bytes):
            shape = _parse_shape(value)
        elif number == 7 and isinstance(value, bytes):
            slices.append(_parse_extents(value))
        elif number in numbers and isinstance(value, int):
            numbers[number] = signed(value)
    if numbers[1] not in DTYPES:
        raise errors.CheckpointError(
            f"its dtype is number {numbers[1]}, which this release does not read"
        )
    return Entry(
        name=name,
        dtype=DTYPES[numbers[1]][0],
        shape=shape,
        file=numbers[3],
        offset=numbers[4],
        size=numbers[5],
        crc=checksum.unmask(numbers[6] & 0xFFFFFFFF),
        slices=tuple(slices) or None,
    )


def _parse_shape(text: bytes) -> tuple[int, ...]:
    """Parses a TensorShapeProto."""
    shape = []
    for number, value in file_bytes.fields(text):
        if number == 3 and value:
            raise errors.CheckpointError("its rank is unknown")
        if number == 2 and isinstance(value, bytes):
            size = dict(file_bytes.fields(value)).get(1, 0)
            shape.append(signed(size) if isinstance(size, int) else -1)
    if len(shape) > 254 or any(size < 0 for size in shape):
        raise errors.CheckpointError("its shape is none")
    # NumPy limits the product of a shape's dimensions that are not 0.
    if math.prod(size for size in shape if size) >= 1 << 58:
        raise errors.CheckpointError("its shape is none")
    return tuple(shape)


def _parse_extents(text: bytes) -> tuple[tuple[int, int], ...]:
    """Parses a TensorSliceProto into (start, length) for each dimension."""
    extents = []
    for number, value in file_bytes.fields(text):
        if number == 1 and isinstance(value, bytes):
            extent = dict(file_bytes.fields(value))
            start, length = extent.get(1, 0), extent.get(2, _ALL)
            if isinstance(start, bytes) or isinstance(length, bytes):
                raise errors.CheckpointError(
                    "an extent of a slice is not a message"
                )
            extents.append((signed(start), signed(length)))
    return tuple(extents)


def slice_name(name: bytes, extents: tuple[tuple[int, int], ...]) -> bytes:
    """Returns the key of a slice's entry, in TensorFlow's ordered code."""
    escapes = {0: b"\0\xff", 0xFF: b"\xff\0"}
    escaped = b"".join(escapes.get(c, bytes([c])) for c in name)
    rank = len(extents)
    out = b"\0" + escaped + b"\0\1" + (bytes([1, rank]) if rank else b"\0")
    for start, length in extents:
        out += _ordered(start) + _ordered(length)
    return out


def _ordered(number: int) -> bytes:
    """Encodes an int so that the order of bytes is the order of numbers."""
    size = 1
    while not -(1 << 7 * size - 1) <= number < 1 << 7 * size - 1:
        size += 1
    leading = (1 << size) - 1 << 7 * size
    code = (number & (1 << 8 * size) - 1) ^ leading
    return code.to_bytes(size, "big")
