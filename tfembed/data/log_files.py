"""Finds click logs and reads their lines.

They may be plain or gzipped, have a header or none, tabs or commas.
"""

from __future__ import annotations

import dataclasses
import glob
import gzip
import io
import itertools
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from tfembed.data.log_lines import FIELD_NAMES
from tfembed.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_BUFFER_BYTES = 1 << 17
_HEAD_LINES = 16
_READ_ERRORS = (OSError, EOFError, zlib.error)


@dataclasses.dataclass(frozen=True)
class LogFile:
    """A click log that was opened once and looked sound.

    Attributes:
      path: the path of the file.
      is_gzipped: by its first two bytes.
      delimiter: a tab or a comma.
      header_bytes: the bytes of the header line; 0 where the file has none.
    """

    path: str
    is_gzipped: bool
    delimiter: bytes
    header_bytes: int


@dataclasses.dataclass(frozen=True)
class LineBlock:
    """Consecutive whole lines of a file.

    Attributes:
      lines: without line breaks.
      ends: the offset after each line, in uncompressed bytes.
      first_line: number of the first one, from 1.
      fault: why the file ends after these lines without having ended well.
    """

    lines: list[bytes]
    ends: list[int]
    first_line: int
    fault: str | None


def find_logs(pattern: str) -> list[LogFile]:
    """The files that a path or glob names, sorted.

    Raises:
      DataError: there is none, or one is empty or unreadable.
    """
    if not pattern:
        raise DataError("is empty; it takes a path or a glob", path="pattern")
    if pathlib.Path(pattern).exists():
        paths = [pattern]
    else:
        paths = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - it may be absolute
    if not paths:
        kind = (
            "matches no file" if glob.has_magic(pattern) else "does not exist"
        )
        raise DataError(
            f"{kind}; the logs are named by a path or a glob", path=pattern
        )
    return [_inspect(path) for path in paths]


def read_blocks(
    log: LogFile, line: int, offset: int, block_lines: int
) -> Iterator[LineBlock]:
    """The lines after `line` lines and `offset` bytes, in blocks."""
    if offset == 0 and log.header_bytes:
        line, offset = 1, log.header_bytes
    with _open(log.path, log.is_gzipped, offset) as file:
        while True:
            raw, cut = _read_lines(file, block_lines)
            if not raw and cut is None:
                return
            if cut is None and not raw[-1].endswith(b"\n"):
                cut = _cut_in_line(raw[-1], log.delimiter)
                if cut is not None:
                    raw.pop()
            ends = list(itertools.accumulate(map(len, raw), initial=offset))
            lines = [text.rstrip(b"\r\n") for text in raw]
            yield LineBlock(lines, ends[1:], line + 1, cut)
            if cut is not None:
                return
            line, offset = line + len(lines), ends[-1]


def _inspect(path: str) -> LogFile:
    if pathlib.Path(path).is_dir():
        raise DataError(f"a directory; '{path}/*' names its files", path=path)
    try:
        with pathlib.Path(path).open("rb") as file:
            is_gzipped = file.read(2) == _GZIP_MAGIC
        with _open(path, is_gzipped) as file:
            head, fault = _read_lines(file, _HEAD_LINES)
    except OSError as error:
        raise DataError(f"cannot be read: {error}", path=path) from None
    if not head:
        raise DataError(fault or "an empty file", path=path)
    # Of several lines: the first one may be bad.
    text = b"".join(head)
    delimiter = b"\t" if text.count(b"\t") >= text.count(b",") else b","
    is_header = head[0].split(delimiter)[0].strip().lower() == b"label"
    if is_header:
        _check_header(path, head[0].split(delimiter))
        if len(head) == 1:
            raise DataError("only a header, no lines", path=path)
    return LogFile(path, is_gzipped, delimiter, len(head[0]) * is_header)


def _check_header(path: str, fields: list[bytes]) -> None:
    names = [it.decode(errors="replace").strip().lower() for it in fields]
    if names != [name.lower() for name in FIELD_NAMES]:
        raise DataError(
            f"the header has {len(names)} columns, {', '.join(names[:3])}, ...;"
            f" it must have the {len(FIELD_NAMES)} columns label, I1, ..., I13, "
            "C1, ..., C26",
            path=path,
            line=1,
        )


class _Decompressed(io.RawIOBase):
    """Gives out what was decompressed before a fault is met.

    GzipFile's own `readinto` keeps it back.
    """

    def __init__(self, path: str) -> None:
        self._file = gzip.open(path, "rb")  # noqa: SIM115 - close() closes it.

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read1(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def skip(self, count: int) -> None:
        """Decompresses so many bytes and drops them."""
        self._file.seek(count)

    def close(self) -> None:
        self._file.close()
        super().close()


def _open(path: str, is_gzipped: bool, offset: int = 0) -> BinaryIO:
    """The file's content from `offset` on."""
    if is_gzipped:
        raw = _Decompressed(path)
        try:
            raw.skip(offset)
        except _READ_ERRORS as error:
            raise DataError(f"cannot be read: {error}", path=path) from None
        return io.BufferedReader(raw, _BUFFER_BYTES)
    plain = pathlib.Path(path).open("rb", buffering=_BUFFER_BYTES)  # noqa: SIM115 - the caller closes it.
    plain.seek(offset)
    return plain


def _read_lines(file: BinaryIO, count: int) -> tuple[list[bytes], str | None]:
    """At most `count` lines, and why there are no more, if that is a fault."""
    lines: list[bytes] = []
    try:
        for line in itertools.islice(file, count):
            lines.append(line)  # One by one: those before a fault are kept.
    except _READ_ERRORS as error:
        return lines, f"cannot be read further: {error}"
    return lines, None


def _cut_in_line(line: bytes, delimiter: bytes) -> str | None:
    """Says why a last line without a line break is cut; None if it may be whole.

    Criteo's categories have eight digits. One that is shorter, at the very end,
    was cut; the line could be read and would be taken for another category.
    """
    fields = line.split(delimiter)
    if len(fields) == len(FIELD_NAMES) and len(fields[-1]) in (0, 8):
        return None
    return (
        f"the file is cut off in the middle of a line: it ends in field "
        f"{len(fields)} of {len(FIELD_NAMES)}, without a line break"
    )
