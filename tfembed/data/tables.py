"""Tables of text, read by pyarrow: finds files, reads blocks of rows."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import glob
import gzip
import importlib
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
from tfembed.errors import ArgumentError, DataError
from tfembed.optional_packages import optional

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_READ_ERRORS = (OSError, EOFError, zlib.error, tf.errors.OpError)
_BLOCK_BYTES = 1 << 19
_MOST_BYTES = 1 << 26  # The longest row.
_KEPT = 5  # The number of bad lines whose faults a reader keeps.


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
    """Rows of a file as they are.

    Attributes:
      text: the rows.
      ends: int64 [n], the end of each row in the text.
      lines: int64 [n], the number of each row's first line.
      offset: the number of uncompressed bytes before the text.
    """

    text: bytes
    ends: Array
    lines: Array
    offset: int

    def rows(self) -> list[bytes]:
        """Returns the rows, with their line breaks."""
        ends = self.ends.tolist()
        return [self.text[a:b] for a, b in zip([0, *ends], ends)]


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
            raise DataError(
                f"a directory; '{path}/*' names its files", path=path
            )
        paths += found
    if not paths:
        raise ArgumentError("`files` names no file.")
    return paths


def _find_remote(pattern: str) -> list[str]:
    try:
        return sorted(tf.io.gfile.glob(pattern))
    except tf.errors.UnimplementedError:
        optional("tensorflow_io", repr(pattern))  # It registers file systems.
        return sorted(tf.io.gfile.glob(pattern))


@contextlib.contextmanager
def naming(path: str, what: str) -> Iterator[None]:
    """Raises any error as a DataError: libraries have errors of their own."""
    try:
        yield
    except Exception as error:
        said = getattr(error, "message", error)
        raise DataError(f"{what}: {said}", path=path) from error


def check_names(
    found: Sequence[str], wanted: Iterable[str], path: str, line: int | None
) -> None:
    """Refuses a file that lacks a column, or has two of a name, or no text."""
    try:
        "".join(found).encode()
    except UnicodeEncodeError:
        raise DataError("the text is not UTF-8", path=path, line=line) from None
    for name in wanted:
        count = list(found).count(name)
        if count != 1:
            several = "no column" if not count else f"{count} columns"
            names = ", ".join(map(repr, found))
            what = f"has {several} {name!r}; it has {names}"
            raise DataError(what, path=path, line=line)


def read_header(
    path: str, delimiters: Sequence[str], quoted: str = ""
) -> tuple[list[str], Layout]:
    """Returns the fields of the first row, and the layout of the rows after it.

    Args:
      path: the path of the file.
      delimiters: separators of fields, of which the most frequent one counts.
      quoted: the separators with which fields may be quoted.

    Raises:
      DataError: the file cannot be read, is empty, or its first row has quotes
        out of place.
    """
    for block in read_blocks(Layout(path, (), "", False)):
        counts = {one: block.text.count(one.encode()) for one in delimiters}
        break
    else:
        raise DataError("an empty file", path=path)
    delimiter = max(counts, key=counts.__getitem__)
    is_quoted = delimiter in quoted
    head = next(read_blocks(Layout(path, (), delimiter, is_quoted)))
    row = head.rows()[0]
    text = row.decode(errors="surrogateescape").rstrip("\r\n")
    names = text.split(delimiter)
    if is_quoted and '"' in text:
        try:
            names = next(csv.reader([text], delimiter=delimiter, strict=True))
        except csv.Error as error:
            what = f"the header cannot be read: {error}"
            raise DataError(what, path=path, line=1) from None
    line, offset = row.count(b"\n"), head.offset + len(row)
    return names, Layout(path, tuple(names), delimiter, is_quoted, line, offset)


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
    file = _open(layout.path, offset)
    read = getattr(file, "read1", file.read)
    offset = file.tell()
    text, is_end = b"", False
    fault: Exception | None = None
    while not is_end:
        # A row that is longer than a block is looked at a few times only.
        size = max(_BLOCK_BYTES, 2 * len(text))
        try:
            while len(text) < size and not is_end:
                piece = read(size - len(text))
                text, is_end = text + piece, not piece
        except _READ_ERRORS as error:
            fault, is_end = error, True
        ends: Array
        ends, breaks = _row_ends(text, layout.is_quoted)
        rest = len(text) - (ends[-1] if len(ends) else 0)
        if rest >= _MOST_BYTES:
            what = "a row without an end; its quotes may not be closed"
            fault, is_end = ValueError(what), True
        elif rest and is_end and fault is None:
            ends = np.append(ends, [len(text)])
        # Empty lines wait for the rows after them.
        filled = len(text[: ends[-1]].rstrip(b"\r\n")) if len(ends) else 0
        ends = ends[: np.searchsorted(ends, filled) + 1 if filled else 0]
        if len(ends):
            after = line + np.searchsorted(breaks, ends, "right")
            lines = np.append(line, after[:-1]) + 1
            yield Block(text[: ends[-1]], ends, lines, offset)
            text, line = text[ends[-1] :], int(after[-1])
            offset += int(ends[-1])
    if fault is not None:
        what = f"cannot be read further: {fault}"
        raise DataError(what, path=layout.path, line=line + 1) from fault


def _row_ends(text: bytes, is_quoted: bool) -> tuple[Array, Array]:
    """Returns the ends of whole rows, and those of lines."""
    data = np.frombuffer(text, np.uint8)
    breaks: Array = np.flatnonzero(data == ord("\n")) + 1
    if not is_quoted or b'"' not in text:
        return breaks, breaks
    is_inside = np.logical_xor.accumulate(data == ord('"'))
    ends: Array = breaks[~is_inside[breaks - 1]]
    return ends, breaks


def read_rows(block: Block, layout: Layout, kinds: Mapping[str, Kind]) -> Rows:
    """Parses the requested columns of a block."""
    text = block.text
    kept: Array = np.arange(len(block.ends))
    faults = _broken_rows(block, layout)
    if faults:
        rows = block.rows()
        kept = np.delete(kept, list(faults))
        text = b"".join(rows[row] for row in kept)

    def refuse(row: Any) -> str:
        faults[int(kept[row.number - 1])] = _wrong_width(row, layout)
        return "skip"

    table = _read(text, layout, kinds, refuse)
    kept = np.delete(np.arange(len(block.ends)), list(faults))
    found: dict[str, Any] = {}
    bad: dict[int, str] = {}
    for name, kind in kinds.items():
        texts = table.column(name).combine_chunks()
        found[name] = columns.from_texts(texts, name, kind, bad)
    if bad:
        faults.update({int(kept[row]): what for row, what in bad.items()})
        is_good = ~np.isin(np.arange(len(kept)), list(bad))
        kept = kept[is_good]
        found = {name: column[is_good] for name, column in found.items()}
    named = [
        DataError(faults[row], path=layout.path, line=int(block.lines[row]))
        for row in sorted(faults)
    ]
    ends = block.offset + block.ends[kept]
    return Rows(found, block.lines[kept], ends, named)


def check_size(path: str, size: int) -> None:
    """Raises an error where a file, of which `size` bytes were read, has more.

    A gzip file whose last four bytes say `size` is whole; others are read again.
    """
    file = _open(path)
    if isinstance(file, gzip.GzipFile):
        with tf.io.gfile.GFile(path, "rb") as raw:
            raw.seek(raw.size() - 4)
            if raw.read(4) == (size % 2**32).to_bytes(4, "little"):
                return
    file.seek(0, os.SEEK_END)
    if file.tell() != size:
        raise ValueError(f"of {file.tell()} bytes, {size} are of records")


def _open(path: str, offset: int = 0) -> Any:
    """Opens a file, decompressed where its first bytes are gzip's.

    Offset 0 is that after a byte order mark.
    """
    with naming(path, "cannot be read"):
        raw = tf.io.gfile.GFile(path, "rb")
        is_gzipped = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        raw.seek(0)
        file = gzip.GzipFile(fileobj=raw) if is_gzipped else raw
        start = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
        file.seek(offset or start)
        return file


def _broken_rows(block: Block, layout: Layout) -> dict[int, str]:
    """Returns the faults of rows that pyarrow would bend or pass over."""
    text, faults = block.text, dict[int, str]()
    has_empty = text.startswith(b"\n") or b"\n\n" in text
    if not has_empty and b"\r" not in text and b'"' not in text:
        return faults
    d = re.escape(layout.delimiter.encode())
    field = rb'(?:(?:"[^"]*")+|[^"\r' + d + rb"]*)"
    quoted = re.compile(field + b"(?:" + d + field + b")*\r?\n?")
    for number, row in enumerate(block.rows()):
        if row in (b"\n", b"\r\n"):
            faults[number] = "an empty line"
        elif layout.is_quoted and b'"' in row:
            if not quoted.fullmatch(row):
                faults[number] = (
                    "quotes out of place or not closed: a field is quoted as a "
                    'whole, with "" for each quote in it'
                )
        elif b"\r" in row.removesuffix(b"\r\n"):
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
    kinds: Mapping[str, Kind],
    refuse: Callable[[Any], str],
) -> Any:
    """Returns texts, null where empty; rows of other widths are refused."""
    pa: Any = importlib.import_module("pyarrow")
    reader: Any = importlib.import_module("pyarrow.csv")
    types = {
        name: pa.binary() if kind.dtype == "string" else pa.string()
        for name, kind in kinds.items()
    }
    if not text:
        return pa.schema(types).empty_table()
    delimiter = layout.delimiter
    if len(delimiter) > 1:  # pyarrow takes one byte, which the text lacks.
        other = next(chr(i) for i in range(1, 32) if bytes([i]) not in text)
        text = text.replace(delimiter.encode(), other.encode())
        delimiter = other
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
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            include_columns=list(types),
        ),
        memory_pool=pa.system_memory_pool(),
    )
