"""Click logs in Criteo's format: finds files, reads and parses their lines.

Files may be plain or gzipped, with or without a header, separated by tabs or
commas. A line has a label, 13 integers and 26 categories. `SkippedLines`
counts bad lines.
"""

from __future__ import annotations

import dataclasses
import glob
import gzip
import io
import itertools
import pathlib
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import tensorflow as tf

from tfembed.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_BUFFER_BYTES = 1 << 17
_HEAD_LINES = 16
_READ_ERRORS = (OSError, EOFError, zlib.error)
_KEPT = 5  # The number of bad lines whose faults a reader keeps.

NUM_INTEGERS = 13
NUM_CATEGORIES = 26
NUM_FIELDS = 1 + NUM_INTEGERS + NUM_CATEGORIES

INTEGER_NAMES = tuple(f"I{i + 1}" for i in range(NUM_INTEGERS))
CATEGORY_NAMES = tuple(f"C{i + 1}" for i in range(NUM_CATEGORIES))
FIELD_NAMES = ("label", *INTEGER_NAMES, *CATEGORY_NAMES)

# The values of empty fields. An empty label has no value: it is a fault.
_EMPTY_LABEL, _EMPTY_INTEGER, _EMPTY_CATEGORY = [-1.0], [float("nan")], [""]
_DEFAULTS = [
    _EMPTY_LABEL,
    *[_EMPTY_INTEGER] * NUM_INTEGERS,
    *[_EMPTY_CATEGORY] * NUM_CATEGORIES,
]
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclasses.dataclass(frozen=True)
class LogFile:
    """A click log after a first check.

    Attributes:
      path: the path of the file.
      is_gzipped: whether its first two bytes are those of gzip.
      delimiter: a tab or a comma.
      header_bytes: the number of bytes of the header line; 0 without a header.
    """

    path: str
    is_gzipped: bool
    delimiter: bytes
    header_bytes: int


@dataclasses.dataclass(frozen=True)
class LineBlock:
    """Consecutive whole lines of a file.

    Attributes:
      lines: the lines, without line breaks.
      ends: the offset after each line, in uncompressed bytes.
      first_line: the number of the first line, from 1.
      fault: the fault that ends the file after these lines, or None.
    """

    lines: list[bytes]
    ends: list[int]
    first_line: int
    fault: str | None


def find_logs(pattern: str) -> list[LogFile]:
    """Returns the files that match a path or glob, sorted.

    Raises:
      DataError: no file matches, or a file is empty or unreadable.
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
    """Yields blocks of the lines after `line` lines, at `offset` bytes."""
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
    # Check several lines: the first one may be bad.
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
    """Returns the bytes that were decompressed before a fault.

    GzipFile's own `readinto` drops them.
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
        """Decompresses and drops `count` bytes."""
        self._file.seek(count)

    def close(self) -> None:
        self._file.close()
        super().close()


def _open(path: str, is_gzipped: bool, offset: int = 0) -> BinaryIO:
    """Opens a file at an offset of its uncompressed content."""
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
    """Returns at most `count` lines, and the fault that ended the read."""
    lines: list[bytes] = []
    try:
        for line in itertools.islice(file, count):
            lines.append(line)  # One by one: keeps the lines before a fault.
    except _READ_ERRORS as error:
        return lines, f"cannot be read further: {error}"
    return lines, None


def _cut_in_line(line: bytes, delimiter: bytes) -> str | None:
    """Returns how a last line without a line break was cut; None if complete.

    Criteo's categories have eight digits. A shorter one at the very end was
    cut; without this check, the line would be read with a wrong category.
    """
    fields = line.split(delimiter)
    if len(fields) == len(FIELD_NAMES) and len(fields[-1]) in (0, 8):
        return None
    return (
        f"the file is cut off in the middle of a line: it ends in field "
        f"{len(fields)} of {len(FIELD_NAMES)}, without a line break"
    )


class Columns(NamedTuple):
    """labels [n]; integers [n, 13], NaN where empty; categories [26, n]."""

    labels: tf.Tensor
    integers: tf.Tensor
    categories: tf.Tensor


def parse_lines(
    lines: Sequence[bytes], delimiter: bytes
) -> tuple[Columns, dict[int, str]]:
    """Returns the columns of good lines, and the faults of bad lines.

    Args:
      lines: the lines, without line breaks.
      delimiter: a tab or a comma.

    Returns:
      columns: the columns of the good lines, in their order.
      faults: by position in `lines`, the faults of the bad lines, in order.
    """
    columns = _decode(lines, delimiter)
    if columns is not None:
        return columns, {}
    bad = _bad_positions(lines, 0, delimiter)
    faults = {position: fault(lines[position], delimiter) for position in bad}
    good = [line for i, line in enumerate(lines) if i not in faults]
    columns = _decode(good, delimiter)
    assert columns is not None
    return columns, faults


def fault(line: bytes, delimiter: bytes) -> str:
    """Describes the fault of a bad line."""
    if not line.strip():
        return "an empty line"
    fields = line.split(delimiter)
    if len(fields) != NUM_FIELDS:
        few = "few" if len(fields) < NUM_FIELDS else "many"
        return (
            f"too {few} fields: {len(fields)}; a line has {NUM_FIELDS}: the "
            "label, 13 integers, 26 categories"
        )
    if fields[0] not in (b"0", b"1", b"0.0", b"1.0"):
        return f"label {_shown(fields[0])}; it must be 0 or 1"
    for name, field in zip(FIELD_NAMES[1:], fields[1 : 1 + NUM_INTEGERS]):
        if field and not _NUMBER.fullmatch(field.strip()):
            return f"{name} is {_shown(field)}; it must be a number or empty"
    return "a number that is too large for a float"


def _decode(lines: Sequence[bytes], delimiter: bytes) -> Columns | None:
    """Returns the columns; None if a line is bad."""
    separators = NUM_FIELDS - 1
    if any(line.count(delimiter) != separators for line in lines):
        return None
    # The decoder parses "nan" as a number, which would hide a bad field.
    if b"nan" in b"".join(lines).lower() and any(map(_has_nan, lines)):
        return None
    try:
        fields = tf.io.decode_csv(
            tf.constant(lines, tf.string),
            _DEFAULTS,
            field_delim=delimiter.decode(),
            use_quote_delim=False,
        )
    except tf.errors.InvalidArgumentError:
        return None
    labels = fields[0]
    integers = tf.stack(fields[1 : 1 + NUM_INTEGERS], axis=1)
    is_binary = (labels == 0) | (labels == 1)
    if not tf.reduce_all(is_binary) or tf.reduce_any(tf.math.is_inf(integers)):
        return None
    return Columns(labels, integers, tf.stack(fields[1 + NUM_INTEGERS :]))


def _bad_positions(
    lines: Sequence[bytes], first: int, delimiter: bytes
) -> list[int]:
    """Returns the positions of bad lines, by repeated halving."""
    if _decode(lines, delimiter) is not None:
        return []
    if len(lines) == 1:
        return [first]
    middle = len(lines) // 2
    return _bad_positions(lines[:middle], first, delimiter) + _bad_positions(
        lines[middle:], first + middle, delimiter
    )


def _has_nan(line: bytes) -> bool:
    head = re.split(rb"[\t,]", line, maxsplit=1 + NUM_INTEGERS)
    return any(b"nan" in field.lower() for field in head[: 1 + NUM_INTEGERS])


def _shown(field: bytes) -> str:
    text = field[:24].decode(errors="backslashreplace")
    return repr(text if len(field) <= 24 else text + "...")


@dataclasses.dataclass
class SkippedLines:
    """The number of skipped bad lines, and the faults of the first ones.

    Attributes:
      count: the number of skipped lines.
      first: the first five faults, each with its path and line.
    """

    count: int = 0
    first: list[str] = dataclasses.field(default_factory=list)

    def add(self, error: DataError) -> None:
        """Counts a bad line, and keeps its fault if it is among the first."""
        self.count += 1
        if len(self.first) < _KEPT:
            self.first.append(str(error))
