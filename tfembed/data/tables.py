"""Tables of text, read by pyarrow: finds files, reads blocks of rows, columns.

A block has whole rows, about a megabyte of them. pyarrow parses it at once. A
block that pyarrow refuses, or whose numbers are in doubt, is parsed again row
by row, to name the fault and its line. Both ways take the same texts, and give
the same values.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import glob
import gzip
import importlib
import io
import os
import pathlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfembed.errors import ArgumentError, DataError, UnsupportedError

Array = np.ndarray[Any, Any]
Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_READ_ERRORS = (OSError, EOFError, zlib.error, tf.errors.OpError)
_BLOCK_BYTES = 1 << 19
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
class Kind:
    """A description of a column.

    Attributes:
      dtype: "int32", "int64", "float32", "float64" or "string".
      separator: the separator of several values in a field; None: one value.
      blank: the value of an empty field; None: an empty field is a fault.
      finite: whether only finite numbers are allowed.
      exact: whether a whole number that the dtype rounds is a fault.
      among: the only values that are allowed; empty: all.
    """

    dtype: str
    separator: str | None = None
    blank: float | None = 0
    finite: bool = False
    exact: bool = True
    among: tuple[float, ...] = ()


class Lists(NamedTuple):
    """A column of several values per row: all values, and each row's number."""

    values: Array
    lengths: Array


@dataclasses.dataclass(frozen=True)
class Layout:
    """The form of a text file.

    Attributes:
      path: the path of the file.
      names: the names of its columns.
      delimiter: the separator of fields.
      quotes: where fields may be quoted: "none"; in a "line", which ends at a
        line break; or in "rows", whose quoted fields may have line breaks.
      lines: the number of lines before the first row, 0 or 1.
      offset: the number of bytes before the first row.
    """

    path: str
    names: tuple[str, ...]
    delimiter: str
    quotes: Literal["none", "line", "rows"]
    lines: int = 0
    offset: int = 0


class Block(NamedTuple):
    """Whole rows of a file: their text, and the lines and bytes before it."""

    text: bytes
    line: int
    offset: int


class Rows(NamedTuple):
    """The columns of a block's good rows, and the faults of its bad rows.

    Attributes:
      columns: arrays [n] of the columns' dtypes, or Lists; strings are bytes.
      good: int64 [n], the positions of the good rows in the block.
      faults: the faults of the other rows, in order.
    """

    columns: dict[str, Any]
    good: Array
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


def read_head(path: str, quotes: Any) -> tuple[Block, int]:
    """Returns the first rows of a file, and how many bytes the first row has.

    Raises:
      DataError: the file cannot be read or is empty.
    """
    layout = Layout(path, (), ",", quotes)
    block = next(read_blocks(layout, size=1 << 16), None)
    if block is None:
        raise DataError("an empty file", path=path)
    return block, int(row_ends(block.text, quotes)[0])


def is_number(text: str) -> bool:
    """Returns whether a text is a finite number."""
    return _NUMBER.fullmatch(text.strip().encode()) is not None


def names_of(line: bytes, delimiter: str, quotes: str) -> list[str]:
    """Returns the names in a header. Raises ValueError where it is no text."""
    fields = split_row(line, delimiter, quotes)
    try:
        return [field.decode() for field in fields]
    except UnicodeDecodeError:
        raise ValueError("the text is not UTF-8") from None


def split_row(row: bytes, delimiter: str, quotes: str) -> list[bytes]:
    """Returns the fields of a row. Raises ValueError where quotes are bad."""
    row = row.removesuffix(b"\n").removesuffix(b"\r")
    if quotes == "none" or b'"' not in row:
        if b"\r" in row:
            raise ValueError("a carriage return inside of a field")
        return row.split(delimiter.encode())
    text = [row.decode("latin-1")]
    try:
        fields = next(csv.reader(text, delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise ValueError(f"quotes out of place: {error}") from error
    return [field.encode("latin-1") for field in fields]


def read_blocks(
    layout: Layout, line: int = 0, offset: int = 0, size: int = _BLOCK_BYTES
) -> Iterator[Block]:
    """Yields the rows after `line` lines, at `offset` uncompressed bytes.

    Empty lines at the end of the file are left out.

    Raises:
      DataError: the file cannot be read, or is damaged: the whole lines before
        the damage come first.
    """
    path, by_rows = layout.path, layout.quotes == "rows"
    line, offset = max((line, offset), (layout.lines, layout.offset))
    rest, is_start = b"", offset == 0
    with _open(path, offset) as file:
        while True:
            piece, fault = _piece(file, max(size, len(rest)))
            if is_start and piece.startswith(_BOM):
                piece, offset = piece[len(_BOM) :], len(_BOM)
            is_start, text = False, rest + piece
            has_quotes = by_rows and b'"' in text
            end = text.rfind(b"\n") + 1
            if not piece and fault is None:
                end = len(text)
            elif has_quotes:
                ends = [0, *row_ends(text, "rows").tolist()]
                is_inside = text.count(b'"') % 2
                end = ends[-1 if text[-1] == 10 and not is_inside else -2]
            end = _without_empty_lines(text, end)
            if end:
                body = text[:end]
                if has_quotes:
                    _check_quotes(layout, body, line)
                yield Block(body, line, offset)
                line, offset = line + body.count(b"\n"), offset + end
            if fault is not None:
                what = f"cannot be read further: {fault}"
                raise DataError(what, path=path, line=line + 1) from fault
            if not piece:
                return
            rest = text[end:]
            if len(rest) > _MOST_BYTES:
                what = "a row without an end; its quotes may not be closed"
                raise DataError(what, path=path, line=line + 1)


def row_ends(text: bytes, quotes: str) -> Array:
    """Returns int64 [n], the offset after each row of a text."""
    array = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(array == 10) + 1
    if quotes == "rows" and b'"' in text:
        is_inside = np.searchsorted(np.flatnonzero(array == 34), ends) % 2
        ends = ends[is_inside == 0]
    if text and not (len(ends) and ends[-1] == len(text)):
        ends = np.append(ends, len(text))
    return ends


def read_rows(block: Block, layout: Layout, kinds: Mapping[str, Kind]) -> Rows:
    """Parses the requested columns of a block."""
    try:
        columns = _parse(block.text, layout, kinds)
    except ValueError:  # So are pyarrow's errors.
        return _parse_each(block, layout, kinds)
    count = len(row_ends(block.text, layout.quotes))
    return Rows(columns, np.arange(count), [])


def narrow(values: Array, dtype: Any) -> tuple[Array, Array]:
    """Returns values in the dtype, and which of them the dtype does not hold.

    Args:
      values: integers or floats; whole floats may become integers.
      dtype: an integer or floating dtype. Fractions are rounded to it.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        narrowed = values.astype(dtype, copy=False)
        if values.dtype == narrowed.dtype:
            return narrowed, np.zeros(len(values), bool)
        if values.dtype.kind == narrowed.dtype.kind == "f":
            return narrowed, np.isinf(narrowed) & np.isfinite(values)
        is_bad = narrowed.astype(values.dtype) != values
        # 2**63 as an integer is another number on each processor.
        for one in values, narrowed:
            size = np.abs(one.astype(np.float64))
            is_bad |= ~(
                size <= 2.0**63 if one.dtype.kind == "i" else size < 2.0**63
            )
    return narrowed, is_bad


def check_gzip(path: str, size: int) -> None:
    """Refuses a gzip file that is cut off, of which `size` bytes were read.

    A file whose last four bytes say `size` is whole; others are read again.
    """
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(max(file.size() - 4, 0))
        piece = file.read(4) != (size % 2**32).to_bytes(4, "little")
    with _open(path) as file:
        while piece:
            piece, fault = _piece(file, _BLOCK_BYTES)
            if fault:
                what = f"is cut off or damaged: {fault}"
                raise DataError(what, path=path) from fault


@contextlib.contextmanager
def _open(path: str, offset: int = 0) -> Iterator[Any]:
    """Opens a file, decompressed where its first bytes are gzip's."""
    is_remote = "://" in path
    try:
        raw = tf.io.gfile.GFile(path, "rb") if is_remote else io.FileIO(path)
        is_gzipped = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        file = gzip.GzipFile(fileobj=raw) if is_gzipped else raw
        file.seek(offset)
    except _READ_ERRORS as error:
        raise DataError(f"cannot be read: {error}", path=path) from None
    with raw:
        yield file


def _piece(file: Any, size: int) -> tuple[bytes, Exception | None]:
    """Returns up to `size` bytes, and the fault that ends them."""
    read = getattr(file, "read1", file.read)
    pieces = io.BytesIO()
    try:
        while pieces.tell() < size and (one := read(size - pieces.tell())):
            pieces.write(one)
    except _READ_ERRORS as error:
        return pieces.getvalue(), error
    return pieces.getvalue(), None


def _without_empty_lines(text: bytes, end: int) -> int:
    """Returns the end of the last line that is not empty; 0: all are."""
    last = end
    while last and text[last - 1] in b"\r\n":
        last -= 1
    return last and (text.find(b"\n", last, end) + 1 or end)


def _check_quotes(layout: Layout, text: bytes, line: int) -> None:
    """Refuses quotes that begin or end in the middle of a field."""
    array = np.frombuffer(b"\n" + text + b"\n", np.uint8)
    quotes = np.flatnonzero(array == 34)
    beside = array[quotes + np.resize([-1, 1], len(quotes))]
    allowed = np.frombuffer(f'{layout.delimiter}\r\n"'.encode(), np.uint8)
    bad = quotes[~np.isin(beside, allowed)].tolist()
    if len(quotes) % 2:
        bad.append(int(quotes[-1]))
    if bad:
        raise DataError(
            "quotes out of place or not closed: a field is quoted as a whole, "
            'with "" for each quote in it',
            path=layout.path,
            line=line + text.count(b"\n", 0, bad[0] - 1) + 1,
        )


def _parse(
    text: bytes, layout: Layout, kinds: Mapping[str, Kind]
) -> dict[str, Any]:
    """Returns the columns; raises ValueError where a row is in doubt."""
    by_rows, delimiter = layout.quotes == "rows", layout.delimiter
    pa: Any = importlib.import_module("pyarrow")
    reader: Any = importlib.import_module("pyarrow.csv")
    count = text.count(b"\n") + (not text.endswith(b"\n"))
    if by_rows and b'"' in text:
        count = len(row_ends(text, "rows"))
    # pyarrow breaks lines at "\r", too, and passes over empty lines.
    is_strange = text.count(b"\r") != text.count(b"\r\n")
    if is_strange or (layout.quotes == "line" and b'"' in text):
        raise ValueError
    if delimiter == "::":
        if b"\x1f" in text:
            raise ValueError
        text, delimiter = text.replace(b"::", b"\x1f"), "\x1f"

    def read(types: Mapping[str, Any]) -> Any:
        size = len(text) + 1
        return reader.read_csv(
            pa.BufferReader(text),
            reader.ReadOptions(column_names=layout.names, block_size=size),
            reader.ParseOptions(
                delimiter=delimiter,
                quote_char='"' if by_rows else False,
                newlines_in_values=by_rows,
            ),
            reader.ConvertOptions(
                check_utf8=False,
                column_types=types,
                null_values=[""],
                include_columns=list(types),
            ),
        )

    types = {
        name: pa.binary()
        if kind.dtype == "string" or kind.separator is not None
        else pa.int64()
        if kind.dtype.startswith("int")
        else pa.float64()
        for name, kind in kinds.items()
    }
    table = read(types)
    if table.num_rows != count:
        raise ValueError
    integers = [name for name, one in types.items() if one == pa.int64()]
    if integers and (b"0x" in text or b"0X" in text):
        texts = read(dict.fromkeys(integers, pa.binary()))
        for column in texts.columns:
            _refuse_hexadecimal(column)
    columns = zip(table.columns, kinds.values())
    arrays = [_convert(one.combine_chunks(), kind) for one, kind in columns]
    return dict(zip(kinds, arrays))


def _refuse_hexadecimal(texts: Any) -> None:
    """Raises ValueError for what pyarrow reads as an integer, and is none."""
    compute: Any = importlib.import_module("pyarrow.compute")
    if compute.any(compute.match_substring_regex(texts, "[xX]")).as_py():
        raise ValueError


def _convert(column: Any, kind: Kind) -> Any:
    """Returns the values; raises ValueError where one is in doubt."""
    column = getattr(column, "chunk", lambda _: column)(0)
    if kind.separator is not None:
        return _split(column, kind)
    if kind.dtype == "string":
        return column.to_numpy(zero_copy_only=False)
    if not column.null_count:
        return _narrowed(column.to_numpy(zero_copy_only=False), kind)
    if kind.blank is None:
        raise ValueError
    values = _narrowed(column.fill_null(0).to_numpy(), kind).copy()
    values[np.asarray(column.is_null())] = kind.blank
    return values


def _narrowed(values: Array, kind: Kind) -> Array:
    """Returns int64 or float64 in the dtype; ValueError where in doubt."""
    narrowed, is_doubt = narrow(values, kind.dtype)
    if values.dtype.kind == "f":
        # An infinity, or a nan where none may be, is looked at as text.
        is_doubt = is_doubt | np.isinf(narrowed)
        if kind.finite:
            is_doubt |= np.isnan(narrowed)
        if kind.exact:
            # Whole numbers that the dtype, or float64, may have rounded.
            is_doubt |= np.abs(values) >= 2.0**53
            is_doubt |= (narrowed != values) & (np.trunc(values) == values)
        if kind.among:
            is_doubt |= ~np.isin(narrowed, kind.among)
    if is_doubt.any():
        raise ValueError
    return narrowed


def _split(texts: Any, kind: Kind) -> Lists:
    """Returns bags. An empty field is an empty bag, not one of an empty text."""
    pa: Any = importlib.import_module("pyarrow")
    compute: Any = importlib.import_module("pyarrow.compute")
    lists = compute.split_pattern(texts, kind.separator)
    flat = lists.flatten()
    is_filled = np.asarray(compute.binary_length(flat)) > 0
    counts = np.concatenate([[0], np.cumsum(is_filled)])
    ends = np.cumsum(np.asarray(lists.value_lengths()))
    lengths = np.diff(counts[ends], prepend=0)
    flat = flat.filter(pa.array(is_filled))
    if kind.dtype == "string":
        return Lists(flat.to_numpy(zero_copy_only=False), lengths)
    is_whole = kind.dtype.startswith("int")
    if is_whole:
        _refuse_hexadecimal(flat)
    numbers = flat.cast(pa.string()).cast(
        pa.int64() if is_whole else pa.float64()
    )
    return Lists(_narrowed(numbers.to_numpy(), kind), lengths)


def _parse_each(
    block: Block, layout: Layout, kinds: Mapping[str, Kind]
) -> Rows:
    """Parses row by row, and names each fault."""
    rows: list[list[Any]] = []
    good: list[int] = []
    faults: list[DataError] = []
    start, line = 0, block.line + 1
    for number, end in enumerate(row_ends(block.text, layout.quotes).tolist()):
        row = block.text[start:end]
        try:
            rows.append(_row(row, layout, kinds))
            good.append(number)
        except ValueError as error:
            faults.append(DataError(str(error), path=layout.path, line=line))
        start, line = end, line + row.count(b"\n")
    columns: dict[str, Any] = {}
    for place, (name, kind) in enumerate(kinds.items()):
        dtype: Any = object if kind.dtype == "string" else kind.dtype
        values = [row[place] for row in rows]
        if kind.separator is not None:
            flat = np.array([one for row in values for one in row], dtype)
            columns[name] = Lists(flat, np.array([*map(len, values)], np.int64))
        else:
            columns[name] = np.array(values, dtype)
    return Rows(columns, np.array(good, np.int64), faults)


def _row(row: bytes, layout: Layout, kinds: Mapping[str, Kind]) -> list[Any]:
    if not row.strip(b"\r\n"):
        raise ValueError("an empty line")
    fields = split_row(row, layout.delimiter, layout.quotes)
    width = len(layout.names)
    if len(fields) != width:
        few = "few" if len(fields) < width else "many"
        names = ", ".join(layout.names[:6]) + (", ..." if width > 6 else "")
        raise ValueError(
            f"too {few} fields: {len(fields)}; a row has {width}, separated by "
            f"{layout.delimiter!r}: {names}"
        )
    values: list[Any] = []
    for name, kind in kinds.items():
        field = fields[layout.names.index(name)]
        try:
            if kind.separator is None:
                values.append(_value(field, kind))
            else:
                pieces = filter(None, field.split(kind.separator.encode()))
                values.append([_value(one, kind) for one in pieces])
        except ValueError as error:
            shown = field[:24].decode(errors="backslashreplace")
            shown = repr(shown + "..." * (len(field) > 24))
            raise ValueError(f"{name} is {shown}; {error}") from None
    return values


def _value(field: bytes, kind: Kind) -> Any:
    """Returns the value of a text; raises ValueError that says what is meant."""
    if kind.dtype == "string":
        return field
    text = field.strip(b" \t")
    if not text and kind.blank is not None:
        return kind.blank
    is_whole = _INTEGER.fullmatch(text) and len(text) < 400
    or_empty = "" if kind.blank is None else " or empty"
    if kind.dtype.startswith("int"):
        if not is_whole:
            raise ValueError(f"it must be an integer{or_empty}")
        limits = np.iinfo(kind.dtype)
        if not limits.min <= int(text) <= limits.max:
            raise ValueError(f"it must fit into {kind.dtype}")
        return int(text)
    is_finite = _NUMBER.fullmatch(text)
    if not is_finite and (kind.finite or not _SPECIAL.fullmatch(text)):
        finite = "finite " if kind.finite else ""
        raise ValueError(f"it must be a {finite}number{or_empty}")
    with np.errstate(over="ignore"):
        value = np.dtype(kind.dtype).type(float(text))
    if is_finite and not np.isfinite(value):
        raise ValueError(f"it must fit into {kind.dtype}")
    if kind.exact and is_whole and int(value) != int(text):
        raise ValueError(f"{kind.dtype} would round it")
    if kind.among and value not in kind.among:
        names = " or ".join(f"{one:g}" for one in kind.among)
        raise ValueError(f"it must be {names}")
    return value
