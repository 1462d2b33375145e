"""Tables of text, read by pyarrow: finds files, reads blocks of rows, columns.

pyarrow parses a block of 2,048 rows at once. Where it refuses a number, or a
number is in doubt, it reads the block again as texts, which are judged one by
one, to name the fault and its line.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import glob
import gzip
import importlib
import itertools
import os
import pathlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfembed.data import columns
from tfembed.data.columns import Array, Kind
from tfembed.errors import ArgumentError, DataError, UnsupportedError

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_READ_ERRORS = (OSError, EOFError, zlib.error, tf.errors.OpError)
_BLOCK_ROWS = 2048
_EMPTY = (b"\n", b"\r\n")
_MOST_BYTES = 1 << 26  # The longest row.
_KEPT = 5  # The number of bad lines whose faults a reader keeps.
_INTEGER = re.compile(rb"[+-]?\d+")
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SPECIAL = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)


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


@dataclasses.dataclass(frozen=True)
class Layout:
    """The form of a text file.

    Attributes:
      path: the path of the file.
      names: the names of its columns.
      delimiter: the separator of fields.
      is_quoted: whether fields may be quoted; such fields have line breaks.
      line: the number of lines before the first row.
      offset: the number of bytes before the first row.
    """

    path: str
    names: tuple[str, ...]
    delimiter: str
    is_quoted: bool
    line: int = 0
    offset: int = 0


class Block(NamedTuple):
    """Rows of a file as they are, and the lines and bytes before them."""

    rows: list[bytes]
    line: int
    offset: int


class Rows(NamedTuple):
    """The columns of a block's good rows, and the faults of its bad rows.

    Attributes:
      columns: arrays [n] of the columns' dtypes, or Lists; strings are bytes.
      lines: int64 [n], the number of each row's first line.
      ends: int64 [n], the offset after each row, in uncompressed bytes.
      faults: the faults of the other rows, in order.
    """

    columns: dict[str, Any]
    lines: Array
    ends: Array
    faults: list[DataError]


def find_files(files: Files) -> list[str]:
    """Returns the files that match paths and globs, sorted within each.

    A path that exists is that file, also where it has "*", "?" or "[".

    Raises:
      DataError: no file matches, or a directory does.
      UnsupportedError: a scheme needs tensorflow-io, which is not there.
    """
    patterns = [files] if isinstance(files, str | os.PathLike) else files
    paths: list[str] = []
    for pattern in [os.fspath(one) for one in patterns]:
        if "://" in pattern:
            found = _find_remote(pattern)
        elif pattern and pathlib.Path(pattern).exists():
            found = [pattern]
        else:
            found = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - it may be absolute
        if not found:
            is_glob = glob.has_magic(pattern)
            what = "matches no file" if is_glob else "does not exist"
            raise DataError(what, path=pattern or "''")
        for path in filter(os.path.isdir, found):
            what = f"a directory; '{path}/*' names its files"
            raise DataError(what, path=path)
        paths += found
    if not paths:
        raise ArgumentError("`files` names no file.")
    return paths


def _find_remote(pattern: str) -> list[str]:
    try:
        return sorted(tf.io.gfile.glob(pattern))
    except tf.errors.UnimplementedError:
        try:  # It registers its file systems.
            importlib.import_module("tensorflow_io")
        except Exception as error:  # It may raise errors of TensorFlow, too.
            raise UnsupportedError(
                f"{pattern!r} need tensorflow-io, which cannot be imported here "
                f"({type(error).__name__}: {error}). Install it, with a version "
                "that fits your TensorFlow, or copy the files to a local folder."
            ) from error
        return sorted(tf.io.gfile.glob(pattern))


def check_names(
    found: Sequence[str], wanted: Iterable[str], path: str, line: int | None
) -> None:
    """Refuses a file that lacks a column, or has two of one name."""
    for name in wanted:
        count = list(found).count(name)
        if count != 1:
            several = "no column" if not count else f"{count} columns"
            names = ", ".join(map(repr, found))
            what = f"has {several} {name!r}; it has {names}"
            raise DataError(what, path=path, line=line)


def read_head(path: str, *, is_quoted: bool) -> Block:
    """Returns the first rows of a file.

    Raises:
      DataError: the file cannot be read or is empty.
    """
    block = next(read_blocks(Layout(path, (), ",", is_quoted)), None)
    if block is None:
        raise DataError("an empty file", path=path)
    return block


def header(head: Block, path: str, delimiter: str) -> tuple[list[str], Layout]:
    """Returns the names in the first row of a file, and the layout after it.

    Raises:
      DataError: the row is no header.
    """
    row = head.rows[0]
    try:
        text = row.decode().rstrip("\r\n")
        names = text.split(delimiter)
        if '"' in text:
            names = next(csv.reader([text], delimiter=delimiter, strict=True))
    except UnicodeDecodeError:
        raise DataError("the text is not UTF-8", path=path, line=1) from None
    except csv.Error as error:
        what = f"the header cannot be read: {error}"
        raise DataError(what, path=path, line=1) from None
    lines, offset = row.count(b"\n"), head.offset + len(row)
    return names, Layout(path, tuple(names), delimiter, False, lines, offset)


def is_number(text: str) -> bool:
    """Returns whether a text is a finite number."""
    return _NUMBER.fullmatch(text.strip().encode()) is not None


def read_blocks(
    layout: Layout, line: int = 0, offset: int = 0
) -> Iterator[Block]:
    """Yields the rows after `line` lines, at `offset` uncompressed bytes.

    Empty lines at the end of the file are left out.

    Raises:
      DataError: the file cannot be read, or is damaged: the whole lines before
        the damage come first.
    """
    line, offset = max((line, offset), (layout.line, layout.offset))
    held: list[bytes] = []  # Empty lines, which may be the last.
    fault: Exception | None = None
    is_end = False
    with _open(layout.path) as file:
        offset = offset or (len(_BOM) if file.read(len(_BOM)) == _BOM else 0)
        file.seek(offset)
        reading = _whole_rows(file) if layout.is_quoted else _lines(file)
        while not is_end:
            rows: list[bytes] = []
            try:
                rows.extend(itertools.islice(reading, _BLOCK_ROWS))
                is_end = not rows
                if rows and max(map(len, rows)) >= _MOST_BYTES:
                    what = "a row without an end; its quotes may not be closed"
                    raise ValueError(what)
            except (*_READ_ERRORS, ValueError) as error:
                fault, is_end = error, True
            full = len(rows)
            while full and rows[full - 1] in _EMPTY:
                full -= 1
            if full:
                block = Block(held + rows[:full], line, offset)
                yield block
                line = int(_lines_before(block, layout)[-1])
                offset += sum(map(len, block.rows))
                held = []
            held += rows[full:]
    if fault is not None:
        what = f"cannot be read further: {fault}"
        raise DataError(what, path=layout.path, line=line + 1) from fault


def _lines_before(block: Block, layout: Layout) -> Array:
    """Returns int64 [n + 1], the lines before each row, and after the last."""
    if not layout.is_quoted:
        return block.line + np.arange(len(block.rows) + 1)
    breaks = [row.count(b"\n") for row in block.rows]
    return block.line + np.cumsum([0, *breaks])


def _lines(file: Any) -> Iterator[bytes]:
    """Returns the lines of a file, cut where they are too long."""
    is_remote = isinstance(file, tf.io.gfile.GFile)
    size = () if is_remote else (_MOST_BYTES,)
    return iter(functools.partial(file.readline, *size), b"")


def _whole_rows(file: Any) -> Iterator[bytes]:
    """Yields lines; those that a quoted field goes on over are one row."""
    parts: list[bytes] = []
    size = 0
    is_inside = False
    for line in _lines(file):
        is_inside ^= line.count(b'"') % 2 == 1
        parts.append(line)
        size += len(line)
        if not is_inside or size > _MOST_BYTES:
            yield line if len(parts) == 1 else b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def read_rows(block: Block, layout: Layout, kinds: Mapping[str, Kind]) -> Rows:
    """Parses the requested columns of a block."""
    text = b"".join(block.rows)
    kept = np.arange(len(block.rows))
    faults = _broken_rows(block.rows, text, layout)
    if faults:
        kept = np.delete(kept, list(faults))
        text = b"".join(block.rows[row] for row in kept)

    def refuse(row: Any) -> str:
        faults[int(kept[row.number - 1])] = _wrong_width(row, layout)
        return "skip"

    try:
        found = _parse(text, layout, kinds, refuse)
    except ValueError:  # So are pyarrow's errors.
        texts = _read(text, layout, dict.fromkeys(kinds, "binary"), refuse)
        kept = np.setdiff1d(kept, list(faults))
        found = _judge(texts, kept.tolist(), kinds, faults)
    lines = 1 + _lines_before(block, layout)
    ends = block.offset + np.cumsum([*map(len, block.rows)])
    good = np.delete(np.arange(len(block.rows)), list(faults))
    named = [
        DataError(faults[row], path=layout.path, line=int(lines[row]))
        for row in sorted(faults)
    ]
    return Rows(found, lines[good], ends[good], named)


def check_gzip(path: str, size: int) -> None:
    """Refuses a gzip file that is cut off, of which `size` bytes were read.

    A file whose last four bytes say `size` is whole; others are read again.
    """
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(max(file.size() - 4, 0))
        if file.read(4) == (size % 2**32).to_bytes(4, "little"):
            return
    with _open(path) as file:
        try:
            while file.read(1 << 17):
                pass
        except _READ_ERRORS as error:
            what = f"is cut off or damaged: {error}"
            raise DataError(what, path=path) from error


@contextlib.contextmanager
def _open(path: str) -> Iterator[Any]:
    """Opens a file, decompressed where its first bytes are gzip's."""
    local = pathlib.Path(path)
    try:
        raw = (
            tf.io.gfile.GFile(path, "rb") if "://" in path else local.open("rb")
        )
        is_gzipped = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
    except _READ_ERRORS as error:
        raise DataError(f"cannot be read: {error}", path=path) from None
    with raw:
        yield gzip.GzipFile(fileobj=raw) if is_gzipped else raw


def _broken_rows(
    rows: list[bytes], text: bytes, layout: Layout
) -> dict[int, str]:
    """Returns the faults of rows that pyarrow would bend or pass over."""
    faults: dict[int, str] = {}
    has_empty = text.startswith(b"\n") or b"\n\n" in text
    if not has_empty and b"\r" not in text and b'"' not in text:
        return faults
    d = re.escape(layout.delimiter.encode())
    field = rb'(?:(?:"[^"]*")+|[^"\r' + d + rb"]*)"
    quoted = re.compile(field + b"(?:" + d + field + b")*\r?\n?")
    for number, row in enumerate(rows):
        if row in _EMPTY:
            faults[number] = "an empty line"
        elif layout.is_quoted and b'"' in row:
            if not quoted.fullmatch(row):
                faults[number] = (
                    "quotes out of place or not closed: a field is quoted as a "
                    'whole, with "" for each quote in it'
                )
        elif b"\r" in row and b"\r" in row.removesuffix(b"\r\n"):
            faults[number] = "a carriage return inside of a field"
    return faults


def _wrong_width(row: Any, layout: Layout) -> str:
    few = "few" if row.actual_columns < row.expected_columns else "many"
    return (
        f"too {few} fields: {row.actual_columns}; a row has "
        f"{row.expected_columns}, separated by {layout.delimiter!r}: "
        + ", ".join([*layout.names[:6], "..."][: len(layout.names)])
    )


def _read(
    text: bytes,
    layout: Layout,
    types: Mapping[str, str],
    refuse: Callable[[Any], str],
) -> Any:
    """Returns a table of Arrow. `refuse` is called for rows of another width."""
    pa: Any = importlib.import_module("pyarrow")
    reader: Any = importlib.import_module("pyarrow.csv")
    schema = pa.schema([(n, getattr(pa, one)()) for n, one in types.items()])
    if not text:
        return schema.empty_table()
    delimiter = layout.delimiter
    if len(delimiter) > 1:  # pyarrow takes one byte, which the text lacks.
        other = next(chr(i) for i in range(1, 32) if bytes([i]) not in text)
        text, delimiter = (
            text.replace(delimiter.encode(), other.encode()),
            other,
        )
    is_quoted = layout.is_quoted and b'"' in text
    # Threads, and Arrow's own pool, keep tens of megabytes.
    return reader.read_csv(
        pa.BufferReader(text),
        reader.ReadOptions(
            column_names=layout.names,
            block_size=len(text) + 1,
            use_threads=False,
        ),
        reader.ParseOptions(
            delimiter=delimiter,
            quote_char='"' if is_quoted else False,
            newlines_in_values=is_quoted,
            ignore_empty_lines=False,
            invalid_row_handler=refuse,
        ),
        reader.ConvertOptions(
            check_utf8=False,
            column_types=schema,
            null_values=[""],
            include_columns=schema.names,
        ),
        memory_pool=pa.system_memory_pool(),
    )


def _parse(
    text: bytes,
    layout: Layout,
    kinds: Mapping[str, Kind],
    refuse: Callable[[Any], str],
) -> dict[str, Any]:
    """Returns the columns; raises ValueError where a value is in doubt."""
    compute: Any = importlib.import_module("pyarrow.compute")
    types = {
        name: "binary"
        if kind.dtype == "string" or kind.separator is not None
        else "int64"
        if kind.dtype.startswith("int")
        else "float64"
        for name, kind in kinds.items()
    }
    # pyarrow reads 0x10 as an integer.
    has_integers = any(kind.dtype[:3] == "int" for kind in kinds.values())
    if has_integers and (b"0x" in text or b"0X" in text):
        raise ValueError
    table = _read(text, layout, types, refuse)
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        array = table.column(name).combine_chunks()
        if kind.separator is not None:
            array = _split(array, kind)
        elif (kind.blank is None and array.null_count) or (
            kind.finite and compute.any(compute.is_nan(array)).as_py()
        ):
            raise ValueError
        found[name] = _narrowed(columns.from_arrow(array, kind), kind)
    return found


def _narrowed(column: Any, kind: Kind) -> Any:
    """Returns a column in its dtype; raises ValueError where one is in doubt."""
    if isinstance(column, columns.Lists):
        one = _narrowed(column.values, kind)
        return columns.Lists(one, column.lengths)
    if kind.dtype == "string":
        return column
    narrowed, is_doubt = columns.narrow(column, kind.dtype)
    if narrowed.dtype.kind == "f":
        # Whole numbers that float64 may have rounded, infinities that may be
        # numbers are looked at as texts.
        is_doubt = is_doubt | np.isinf(narrowed) | (np.abs(column) >= 2.0**53)
        if kind.among:
            is_doubt |= ~np.isin(narrowed, kind.among)
    if is_doubt.any():
        raise ValueError
    return narrowed


def _split(texts: Any, kind: Kind) -> Any:
    """Returns Arrow's lists of the pieces of texts that are not empty."""
    pa: Any = importlib.import_module("pyarrow")
    compute: Any = importlib.import_module("pyarrow.compute")
    lists = compute.split_pattern(texts, kind.separator)
    flat = lists.flatten()
    is_filled = np.asarray(compute.binary_length(flat)) > 0
    counts = np.append(0, np.cumsum(is_filled))
    ends = np.append(0, np.cumsum(np.asarray(lists.value_lengths())))
    flat = flat.filter(pa.array(is_filled))
    if kind.dtype != "string":
        is_whole = kind.dtype.startswith("int")
        number = pa.int64() if is_whole else pa.float64()
        flat = flat.cast(pa.string()).cast(number)
    return pa.ListArray.from_arrays(pa.array(counts[ends], pa.int32()), flat)


def _judge(
    texts: Any,
    rows: list[int],
    kinds: Mapping[str, Kind],
    faults: dict[int, str],
) -> dict[str, Any]:
    """Returns the columns of the good rows; judges each text by itself."""
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        found[name] = values = {}
        for row, field in zip(rows, texts.column(name).to_pylist()):
            separator = (kind.separator or "").encode()
            pieces = (
                filter(None, field.split(separator)) if separator else [field]
            )
            try:
                values[row] = [_value(piece, kind) for piece in pieces]
            except ValueError as error:
                shown = field[:24].decode(errors="backslashreplace")
                shown = repr(shown + "..." * (len(field) > 24))
                faults.setdefault(row, f"{name} is {shown}; it must {error}")
    for name, kind in kinds.items():
        lists = [found[name][row] for row in rows if row not in faults]
        dtype: Any = object if kind.dtype == "string" else kind.dtype
        flat = np.array([one for values in lists for one in values], dtype)
        lengths = np.array([*map(len, lists)], np.int64)
        is_bag = kind.separator is not None
        found[name] = columns.Lists(flat, lengths) if is_bag else flat
    return found


def _value(field: bytes, kind: Kind) -> Any:
    """Returns the value of a text; raises ValueError that says what it must be."""
    if kind.dtype == "string":
        return field
    text = field.strip(b" \t")
    if not text and kind.blank is not None:
        return kind.blank
    is_whole = _INTEGER.fullmatch(text) and len(text) < 400
    is_finite = is_whole or _NUMBER.fullmatch(text)
    or_empty = "" if kind.blank is None else " or empty"
    if kind.dtype.startswith("int") and not is_whole:
        raise ValueError(f"be an integer{or_empty}")
    if not is_finite and (kind.finite or not _SPECIAL.fullmatch(text)):
        finite = "finite " if kind.finite else ""
        raise ValueError(f"be a {finite}number{or_empty}")
    number: Any = int(text) if is_whole else float(text)
    try:
        with np.errstate(over="ignore"):
            value = np.array(number).astype(kind.dtype)[()]
        is_held = not is_finite or np.isfinite(value)
        is_held &= not is_whole or int(value) == number
    except OverflowError:
        is_held = False
    if not is_held:
        raise ValueError(f"fit into {kind.dtype} as it is")
    if kind.among and value not in kind.among:
        raise ValueError("be " + " or ".join(f"{one:g}" for one in kind.among))
    return value
