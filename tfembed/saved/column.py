"""A column of a saved table: an element or a row of elements for each key."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tfembed import errors
from tfembed.saved.checksum import crc32c, unmask
from tfembed.saved.file_bytes import FileBytes, take_varint

__all__ = ["Column", "Encoding", "Part", "aligned", "raw_strings"]

# The bytes that are read at a time. A part of at most this size is compared
# with its checksum before any of its rows is returned.
_BLOCK_BYTES = 4 << 20
_WHOLE_BYTES = 32 << 20
_STRINGS = 1 << 16

# The NumPy dtypes that store elements of dtypes that NumPy lacks.
_STORED = {"bfloat16": "<u2", "bool": "u1", "float16": "<f2"}


class Encoding(enum.Enum):
    """How the elements of a part are stored."""

    NUMBERS = "numbers"  # Little-endian, one after the other.
    # Lengths, then a checksum, then the bytes.
    BUNDLE_STRINGS = "strings of a checkpoint"
    # Each string: four bytes of length, then the bytes.
    RAW_STRINGS = "strings of a raw file"
    OBJECTS = "objects"  # C++ objects, which are checked but never parsed.


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a column: rows that lie together in one file.

    Attributes:
      file: the file with the rows.
      offset, size: the position and number of the bytes in the file.
      crc: the checksum of the bytes; None where the file has none.
      first_row, rows: the number of the first row, and the number of rows.
      encoding: the format of the elements.
      columns: the number of elements of each row that the part has, where
        other parts have the rest of the same rows; None: whole rows.
    """

    file: FileBytes
    offset: int
    size: int
    crc: int | None
    first_row: int
    rows: int
    encoding: Encoding
    columns: int | None = None


class Column:
    """The rows of one tensor, read block by block.

    A block has some megabytes, so a column may be larger than the memory. All
    bytes are compared with their checksum: a part of up to 32 MB before its
    first row is returned, a larger one after its last row. So all rows are
    known to be undamaged only after a stream has ended.

    Attributes:
      name: the name of the tensor.
      dtype: TensorFlow's name of the elements' dtype. NumPy receives bfloat16
        as float32, strings as bytes.
      shape: the shape of the tensor; the first dimension counts the rows.
      parts: the parts of the files that hold the rows, in their order; parts
        of the same rows from left to right.

    Args:
      blocks: returns all rows, block by block, where they are not simply the
        parts' bytes; None: they are.
    """

    def __init__(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        parts: list[Part],
        blocks: Callable[[], Iterator[np.ndarray[Any, Any]]] | None = None,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.parts = parts
        self._blocks = blocks

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.shape[0] if self.shape else 1

    @property
    def size(self) -> int:
        """The number of bytes in the files."""
        return sum(part.size for part in self.parts)

    @property
    def is_of_strings(self) -> bool:
        """Whether the elements are strings."""
        return self.dtype == "string"

    def stream(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yields all rows in their order, a block at a time.

        Raises:
          tfembed.errors.CheckpointError: the bytes do not match their
            checksum.
        """
        for _, _, blocks in self._runs():
            yield from blocks

    def take(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the rows of these numbers, in the order of `rows`.

        Raises:
          As for `stream`.
        """
        order = np.argsort(rows, kind="stable")
        wanted = np.asarray(rows)[order]
        taken = np.empty((len(wanted), *self.shape[1:]), self._given_dtype())
        done = 0
        for at, end, blocks in self._runs():
            if np.equal(*np.searchsorted(wanted, [at, end])):
                continue
            for block in blocks:
                b, e = np.searchsorted(wanted, [at, at + len(block)])
                if b < e:
                    taken[order[b:e]] = block[wanted[b:e] - at]
                    done += e - b
                at += len(block)
        if done < len(wanted):
            raise errors.CheckpointError(
                f"Tensor '{self.name}' is damaged: it has no rows "
                f"{wanted[-1]} and before."
            )
        return taken

    def check(self) -> None:
        """Compares all bytes with their checksums.

        Raises:
          tfembed.errors.CheckpointError: some bytes do not match.
        """
        for part in self.parts:
            if part.columns is not None:
                self._alone(part).check()
            elif part.encoding is Encoding.NUMBERS:
                for _ in self._pieces(part):
                    pass
            elif part.encoding is Encoding.OBJECTS:
                self._check_objects(part)
            else:
                for _ in self._part_stream(part):
                    pass

    def _runs(
        self,
    ) -> Iterator[tuple[int, int, Iterator[np.ndarray[Any, Any]]]]:
        """Yields runs of rows: the first, the one behind, and their blocks."""
        if self._blocks is not None:
            yield 0, self.rows, self._blocks()
            return
        for parts in self._by_rows():
            first = parts[0].first_row
            yield first, first + parts[0].rows, self._stream_of(parts)

    def numbers(self, piece: bytes) -> np.ndarray[Any, Any]:
        """Returns the rows that some bytes are."""
        stored = self._as_numpy(_STORED.get(self.dtype, self.dtype))
        numbers = np.frombuffer(piece, stored.newbyteorder("<"))
        if self.dtype == "bfloat16":
            numbers = (numbers.astype("<u4") << 16).view("<f4")
        elif self.dtype == "bool":
            numbers = numbers != 0
        return numbers.reshape(-1, *self.shape[1:])

    def _by_rows(self) -> Iterator[list[Part]]:
        """Yields the parts of the same rows together."""
        for _, parts in itertools.groupby(self.parts, lambda p: p.first_row):
            same = list(parts)
            if same[-1].columns is None:
                yield from ([part] for part in same)  # Some may have no rows.
            else:
                yield same

    def _alone(self, part: Part) -> Column:
        """Returns a column of a part's elements alone."""
        assert part.columns is not None
        whole = dataclasses.replace(part, columns=None, first_row=0)
        return Column(self.name, self.dtype, (part.rows, part.columns), [whole])

    def _stream_of(self, parts: list[Part]) -> Iterator[np.ndarray[Any, Any]]:
        """Yields rows, which parts side by side have together."""
        if parts[0].columns is None:
            yield from self._part_stream(parts[0])
            return
        pieces = {str(i): self._alone(part) for i, part in enumerate(parts)}
        for _, arrays in aligned(pieces):
            yield np.concatenate(list(arrays.values()), axis=1)

    def _given_dtype(self) -> Any:
        if self.is_of_strings:
            return object
        if self.dtype == "bfloat16":
            return np.float32
        return self._as_numpy(self.dtype)

    def _as_numpy(self, dtype: str) -> Any:
        try:
            return np.dtype(dtype)
        except TypeError:
            raise errors.UnsupportedError(
                f"Tensor '{self.name}' is of {self.dtype}, which this release "
                "does not show."
            ) from None

    def _part_stream(self, part: Part) -> Iterator[np.ndarray[Any, Any]]:
        if part.encoding is Encoding.NUMBERS:
            for piece in self._pieces(part):
                yield self.numbers(piece)
            return
        if part.encoding is Encoding.OBJECTS:
            raise errors.UnsupportedError(
                f"Tensor '{self.name}' has C++ objects, which are not shown."
            )
        read = (
            self._bundle_strings
            if part.encoding is Encoding.BUNDLE_STRINGS
            else self._raw_strings
        )
        yield from self._rows_of(read(part))

    def _row_elements(self) -> int:
        elements = 1
        for size in self.shape[1:]:
            elements *= size
        return elements

    def _pieces(self, part: Part) -> Iterator[bytes]:
        """Yields a part's bytes in whole rows, and checks the checksum.

        A part that is read as a whole is checked before its bytes are yielded.
        """
        row_bytes = part.size // part.rows if part.rows else 0
        if not row_bytes:
            self._compare(part, 0 if not part.size else None)
            return
        crc = 0
        is_whole = part.size <= _WHOLE_BYTES
        step = part.size if is_whole else _BLOCK_BYTES // row_bytes * row_bytes
        step = step or row_bytes
        for at in range(0, part.size, step):
            piece = part.file.read(part.offset + at, min(step, part.size - at))
            if part.crc is not None:
                crc = crc32c(piece, crc)
            if is_whole:
                self._compare(part, crc)
            yield piece
        if not is_whole:
            self._compare(part, crc)

    def _rows_of(
        self, strings: Iterator[list[bytes]]
    ) -> Iterator[np.ndarray[Any, Any]]:
        """Groups a stream of strings into rows."""
        each = self._row_elements()
        rest: list[bytes] = []
        for some in strings:
            rest += some
            rows = len(rest) // each if each else 0
            block = np.empty(rows * each, object)
            block[:] = rest[: rows * each]
            del rest[: rows * each]
            yield block.reshape(rows, *self.shape[1:])

    def _bundle_strings(self, part: Part) -> Iterator[list[bytes]]:
        """Reads lengths (varints), their checksum, then all strings' bytes."""
        count = part.rows * self._row_elements()
        if not part.size:
            self._compare(part, 0)
            return
        crc, total, at = 0, 0, 0
        for lengths, end in self._lengths(part, count):
            at = end
            crc = crc32c(_as_saved(lengths), crc)
            total += sum(lengths)
        saved = part.file.read(part.offset + at, 4)
        if unmask(int.from_bytes(saved, "little")) != crc:
            raise self._damaged(part, "the checksum of its lengths is wrong")
        at += 4
        if total != part.size - at:
            raise self._damaged(
                part,
                f"its strings have {total} bytes; there are {part.size - at}",
            )
        crc = crc32c(saved, crc)
        is_whole = part.size <= _WHOLE_BYTES
        if is_whole:
            self._compare(
                part, crc32c(part.file.read(part.offset + at, total), crc)
            )
        for many, _ in self._lengths(part, count):
            for lengths in _groups(many):
                some = part.file.read(part.offset + at, sum(lengths))
                if not is_whole:
                    crc = crc32c(some, crc)
                at += len(some)
                yield _cut(some, lengths)
        if not is_whole:
            self._compare(part, crc)

    def _lengths(
        self, part: Part, count: int
    ) -> Iterator[tuple[list[int], int]]:
        """Yields lengths of strings and the position behind them, by blocks."""
        at = left = 0
        while left < count:
            n = min(_STRINGS, count - left)
            text = part.file.read(part.offset + at, min(10 * n, part.size - at))
            lengths, used = _varints(text, n)
            if len(lengths) < n:
                raise self._damaged(part, "its lengths do not end")
            at, left = at + used, left + n
            yield lengths, at

    def _raw_strings(self, part: Part) -> Iterator[list[bytes]]:
        """Reads strings with four bytes of length before each."""
        if part.crc is not None:
            crc = 0
            for at in range(0, part.size, _BLOCK_BYTES):
                size = min(_BLOCK_BYTES, part.size - at)
                crc = crc32c(part.file.read(part.offset + at, size), crc)
            self._compare(part, crc)
        count = part.rows * self._row_elements()
        strings: list[bytes] = []
        taken = 0
        for string in raw_strings(part):
            strings.append(string)
            taken += len(string)
            if len(strings) == _STRINGS or taken > _BLOCK_BYTES:
                yield strings
                count -= len(strings)
                strings, taken = [], 0
        if count != len(strings):
            raise self._damaged(
                part,
                f"its count of strings is off by {abs(count - len(strings))}",
            )
        yield strings

    def _check_objects(self, part: Part) -> None:
        """Checks C++ objects: a length, bytes, and the checksum so far."""
        at, crc = 0, 0
        for _ in range(part.rows * self._row_elements()):
            head = part.file.read(part.offset + at, min(10, part.size - at))
            length, used = take_varint(head, 0)
            at += used
            if length > part.size - at - 4:
                raise self._damaged(
                    part, f"an object of {length} bytes is cut off"
                )
            crc = crc32c(struct.pack("<Q", length), crc)
            while length:
                some = min(length, _BLOCK_BYTES)
                crc = crc32c(part.file.read(part.offset + at, some), crc)
                at, length = at + some, length - some
            saved = part.file.read(part.offset + at, 4)
            if unmask(int.from_bytes(saved, "little")) != crc:
                raise self._damaged(part, "the checksum of an object is wrong")
            crc = crc32c(saved, crc)
            at += 4
        if at != part.size:
            raise self._damaged(part, f"{part.size - at} bytes are left")
        self._compare(part, crc)

    def _compare(self, part: Part, crc: int | None) -> None:
        if part.crc is not None and crc != part.crc:
            raise self._damaged(part, f"its checksum is {crc}, not {part.crc}")

    def _damaged(self, part: Part, what: str) -> errors.CheckpointError:
        return errors.CheckpointError(
            f"'{part.file.name}' is damaged or cut off: tensor '{self.name}': "
            f"{what}."
        )


def aligned(
    columns: Mapping[str, Column],
) -> Iterator[tuple[int, dict[str, np.ndarray[Any, Any]]]]:
    """Cuts columns into equal ranges of rows, as many as all have in memory."""
    # A column of width 0 has no bytes to read.
    streams = {
        name: column.stream()
        for name, column in columns.items()
        if column.shape[1:] != (0,)
    }
    empty = {
        name: np.zeros((0, 0), np.float32)
        for name in columns
        if name not in streams
    }
    total = min((column.rows for column in columns.values()), default=0)
    at_hand: dict[str, np.ndarray[Any, Any]] = {}
    done = 0
    while done < total and streams:
        for name, stream in streams.items():
            while name not in at_hand or not len(at_hand[name]):
                block = next(stream, None)
                if block is None:
                    raise errors.CheckpointError(
                        f"'{columns[name].name}' has fewer rows than the columns beside it."
                    )
                at_hand[name] = block
        n = min(len(array) for array in at_hand.values())
        arrays = {name: array[:n] for name, array in at_hand.items()}
        arrays |= {name: np.zeros((n, 0), a.dtype) for name, a in empty.items()}
        yield n, arrays
        at_hand = {name: array[n:] for name, array in at_hand.items()}
        done += n
    for stream in streams.values():  # The end of a stream checks its checksums.
        for _ in stream:
            pass


def raw_strings(part: Part) -> Iterator[bytes]:
    """Yields the strings of a raw file, with four bytes of length before each.

    Raises:
      tfembed.errors.CheckpointError: the last string is cut off.
    """
    text, at, done = b"", 0, 0
    while done < part.size or at < len(text):
        length = (
            int.from_bytes(text[at : at + 4], "little")
            if len(text) - at >= 4
            else 0
        )
        if len(text) - at >= 4 + length:
            yield text[at + 4 : at + 4 + length]
            at += 4 + length
            continue
        more = min(max(4 + length, _BLOCK_BYTES), part.size - done)
        if len(text) - at + more < 4 + length:
            raise errors.CheckpointError(
                f"'{part.file.name}' is damaged or cut off: its last string "
                "does not end."
            )
        text = text[at:] + part.file.read(part.offset + done, more)
        at, done = 0, done + more


def _varints(text: bytes, n: int) -> tuple[list[int], int]:
    """Decodes at most `n` varints; returns these and their size in bytes."""
    octets = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(octets < 0x80)[:n]
    if not len(ends):
        return [], 0
    begins = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - begins + 1
    if sizes.max() > 10:
        return [], 0
    numbers = np.zeros(len(ends), np.uint64)
    for position in range(int(sizes.max())):
        has = sizes > position
        digits = (octets[begins[has] + position] & 0x7F).astype(np.uint64)
        numbers[has] |= digits << np.uint64(7 * position)
    return numbers.tolist(), int(ends[-1]) + 1


def _as_saved(lengths: list[int]) -> bytes:
    """Encodes lengths as their checksum needs: 4 bytes, 8 if they are large."""
    if not lengths or max(lengths) < 1 << 32:
        return np.asarray(lengths, "<u4").tobytes()
    return b"".join(
        struct.pack("<I" if length < 1 << 32 else "<Q", length)
        for length in lengths
    )


def _groups(lengths: list[int]) -> Iterator[list[int]]:
    """Groups the lengths of strings into blocks of at most `_BLOCK_BYTES`."""
    if sum(lengths) <= _BLOCK_BYTES:
        yield lengths
        return
    group: list[int] = []
    total = 0
    for length in lengths:
        if group and total + length > _BLOCK_BYTES:
            yield group
            group, total = [], 0
        group.append(length)
        total += length
    yield group


def _cut(text: bytes, lengths: list[int]) -> list[bytes]:
    """Cuts `text` into strings of these lengths."""
    strings, at = [], 0
    for length in lengths:
        strings.append(text[at : at + length])
        at += length
    return strings
