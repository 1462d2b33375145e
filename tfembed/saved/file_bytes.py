"""Reads bytes of files and of file segments, and protocol buffers in them.

These functions read as much of protocol buffers' wire format as the index of a
checkpoint needs.
"""

from __future__ import annotations

import bisect
import itertools
import os
import pathlib
import stat
import weakref
from collections.abc import Iterator, Sequence

from tfembed import errors

__all__ = ["FileBytes", "fields", "signed", "take_varint"]


class FileBytes:
    """Reads bytes at any position of a file, within its bounds.

    Args:
      path: a regular file.
      segments: (offset, size) of the parts of the file to read as one, in
        their order; None: the whole file.
      name: the name of the file in errors; None: the path.

    Raises:
      tfembed.errors.CheckpointError: the file is missing, not a regular file
        or not readable, or a segment exceeds the file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        segments: Sequence[tuple[int, int]] | None = None,
        name: str | None = None,
    ) -> None:
        self.path = str(path)
        self.name = name or self.path
        try:
            status = pathlib.Path(path).stat()
            # Opening a FIFO would wait for its writer.
            if not stat.S_ISREG(status.st_mode):
                raise errors.CheckpointError(f"'{self.path}' is not a file.")
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._descriptor)
        except FileNotFoundError:
            raise errors.CheckpointError(
                f"There is no file '{self.path}'."
            ) from None
        except OSError as error:
            raise errors.CheckpointError(
                f"'{self.path}' cannot be read: {error.strerror}."
            ) from error
        whole = status.st_size
        self._segments = [(0, whole)] if segments is None else list(segments)
        for offset, size in self._segments:
            if not 0 <= offset <= whole or not 0 <= size <= whole - offset:
                raise errors.CheckpointError(
                    f"'{self.name}' is damaged or cut off: {size} bytes at "
                    f"{offset} are not in the {whole} of '{self.path}'."
                )
        self._ends = list(
            itertools.accumulate(size for _, size in self._segments)
        )
        self.size = self._ends[-1] if self._ends else 0
        self.modified = status.st_mtime

    def read(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes from `offset` on.

        Raises:
          tfembed.errors.CheckpointError: the file ends before.
        """
        if offset < 0 or size < 0 or size > self.size - offset:
            raise errors.CheckpointError(
                f"'{self.name}' is damaged or cut off: {size} bytes at {offset} "
                f"are not in its {self.size}."
            )
        parts = []
        position = bisect.bisect_right(self._ends, offset)
        while size > 0:
            begin, length = self._segments[position]
            at = offset - (self._ends[position] - length)
            some = min(size, length - at)
            parts.append(self._read_from_file(begin + at, some))
            offset, size, position = offset + some, size - some, position + 1
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_from_file(self, offset: int, size: int) -> bytes:
        parts = []
        try:
            while size > 0:
                some = os.pread(self._descriptor, size, offset)
                if not some:
                    raise errors.CheckpointError(
                        f"'{self.name}' has been cut off while it was read."
                    )
                parts.append(some)
                offset, size = offset + len(some), size - len(some)
        except OSError as error:
            raise errors.CheckpointError(
                f"'{self.name}' cannot be read: {error.strerror}."
            ) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)


def take_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decodes a varint of at most ten bytes; returns it and the next position.

    Raises:
      tfembed.errors.CheckpointError: the varint does not end.
    """
    number = 0
    for i, byte in enumerate(data[at : at + 10]):
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return number & (1 << 64) - 1, at + i + 1
    raise errors.CheckpointError("a varint does not end")


def signed(number: int) -> int:
    """Converts an unsigned 64-bit number to an int64."""
    return number - (1 << 64) if number >> 63 else number


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields (number, value) of a message's fields, in their order.

    Raises:
      tfembed.errors.CheckpointError: the bytes are not a message.
    """
    at = 0
    while at < len(data):
        tag, at = take_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value: int | bytes
            value, at = take_varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = take_varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise errors.CheckpointError(f"a field has wire type {kind}")
        if size > len(data) - at:
            raise errors.CheckpointError("a field does not end")
        value = data[at : at + size]
        at += size
        yield number, value if kind == 2 else int.from_bytes(value, "little")
