"""The bytes of a file, also of one in segments of another, and messages in them.

Of protocol buffers' wire format these functions read enough for the index of a
checkpoint.
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
    """Reads bytes at any position of a file, and never more than are there.

    Args:
      path: a regular file.
      segments: (offset, bytes) of the parts of the file that make up what is
        read, in their order; None: all of it.
      name: its name in errors; None: the path.

    Raises:
      tfembed.errors.CheckpointError: there is no such file, it is no regular one
        or cannot be read, or a segment is not in it.
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
            # Opening a FIFO would wait for who writes into it.
            if not stat.S_ISREG(status.st_mode):
                raise errors.CheckpointError(f"'{self.path}' is no file.")
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
        """`size` bytes from `offset` on.

        Raises:
          tfembed.errors.CheckpointError: they are not all there.
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
    """An unsigned number of up to ten bytes, and the place behind it.

    Raises:
      tfembed.errors.CheckpointError: it does not end.
    """
    number = 0
    for i, byte in enumerate(data[at : at + 10]):
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return number & (1 << 64) - 1, at + i + 1
    raise errors.CheckpointError("a number does not end")


def signed(number: int) -> int:
    """The int64 of an unsigned number of 64 bits."""
    return number - (1 << 64) if number >> 63 else number


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message, by their numbers, in their order.

    Raises:
      tfembed.errors.CheckpointError: it is no message.
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
            raise errors.CheckpointError(f"a field is of the kind {kind}")
        if size > len(data) - at:
            raise errors.CheckpointError("a field does not end")
        value = data[at : at + size]
        at += size
        yield number, value if kind == 2 else int.from_bytes(value, "little")
