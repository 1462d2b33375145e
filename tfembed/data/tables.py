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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfembed.data import columns
from tfembed.data.columns import Array, Kind
from tfembed.errors import ArgumentError, DataError
from tfembed.optional_packages import optional

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_BOM = b"\xef\xbb\xbf"
_BLOCK_BYTES = 1 << 18
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
    """The form of a text file. Offsets are in uncompressed bytes."""

    path: str
    names: tuple[str, ...]  # Of its columns.
    delimiter: str
    is_quoted: bool  # Fields may be quoted; such fields have line breaks.
    line: int = 0  # The number of lines before the first row.
    offset: int = 0  # Of the first row; 0 is behind a byte order mark, too.
    # Returns the fault of the fields of a row without a line break, or "".
    judge_end: Callable[[list[bytes]], str] | None = None


class Block(NamedTuple):
    """Rows of a file as they are."""

    text: bytes
    ends: Array  # int64 [n], the end of each row in the text.
    lines: Array  # int64 [n], the number of each row's first line.
    offset: int  # Of the text in the file.

    def rows(self) -> list[bytes]:
        """Returns the rows, with their line breaks."""
        ends = self.ends.tolist()
        return [self.text[a:b] for a, b in zip([0, *ends], ends)]


class Rows(NamedTuple):
    """The columns of a block's good rows, and the faults of its bad rows."""

    columns: dict[str, Any]  # Arrays [n] or Lists; strings are bytes.
    lines: Array  # int64 [n], the number of each row's first line.
    ends: Array  # int64 [n], the offset after each row.
    faults: list[DataError]  # In the order of the rows.


def find_files(files: Files) -> list[str]:
    """Returns the files that match paths and globs, sorted within each.

    A path that exists is that file, also where it has "*", "?" or "[".
    """
    patterns = [files] if isinstance(files, str | os.PathLike) else files
    paths: list[str] = []
    for pattern in [os.fspath(one) for one in patterns]:
        if "://" in pattern:
            try:
                found = sorted(tf.io.gfile.glob(pattern))
            except tf.errors.UnimplementedError:
                optional("tensorflow_io", repr(pattern))  # It registers more.
                found = sorted(tf.io.gfile.glob(pattern))
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


@contextlib.contextmanager
def naming(path: str, what: str, line: int | None = None) -> Iterator[None]:
    """Raises any error as a DataError: libraries have errors of their own."""
    try:
        yield
    except Exception as error:
        said = getattr(error, "message", error)
        raise DataError(f"{what}: {said}", path=path, line=line) from error


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
) -> Layout:
    """Returns the layout of the rows after the first, whose fields are names.

    The most frequent one of `delimiters` is the file's; with those in `quoted`,
    fields may be quoted.
    """
    block = next(read_blocks(Layout(path, (), "", False)), None)
    if block is None:
        raise DataError("an empty file", path=path)
    count = block.text.count
    delimiter = max(delimiters, key=lambda one: count(one.encode()))
    is_quoted = delimiter in quoted
    block = next(read_blocks(Layout(path, (), delimiter, is_quoted)))
    row = block.rows()[0]
    text = row.decode(errors="surrogateescape").rstrip("\r\n")
    names = text.split(delimiter)
    if is_quoted and '"' in text:
        with naming(path, "the header cannot be read", 1):
            names = next(csv.reader([text], delimiter=delimiter, strict=True))
    line, offset = row.count(b"\n"), block.offset + len(row)
    return Layout(path, tuple(names), delimiter, is_quoted, line, offset)


def read_blocks(layout: Layout) -> Iterator[Block]:
    """Yields the rows; empty lines at the end of the file are left out.

    Raises:
      DataError: the file cannot be read, or is damaged: the whole lines before
        the damage come first.
    """
    file = _open(layout.path, layout.offset)
    read = getattr(file, "read1", file.read)
    line, offset = layout.line, file.tell()
    text, is_end = b"", False
    fault: Exception | None = None
    while not is_end:
        # Many columns need many rows at once; a long row is looked at seldom.
        size = max(_BLOCK_BYTES << (len(layout.names) > 16), 2 * len(text))
        try:
            while len(text) < size and not is_end:
                piece = read(size - len(text))
                text, is_end = text + piece, not piece
        except Exception as error:
            fault, is_end = error, True
        data = np.frombuffer(text, np.uint8)
        breaks: Array = np.flatnonzero(data == ord("\n")) + 1
        ends = breaks
        if layout.is_quoted and b'"' in text:
            is_inside = np.logical_xor.accumulate(data == ord('"'))
            ends = breaks[~is_inside[breaks - 1]]
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


def read(layout: Layout, kinds: Mapping[str, Kind]) -> Iterator[Rows]:
    """Yields the requested columns of the rows that `read_blocks` yields."""
    return (read_rows(block, layout, kinds) for block in read_blocks(layout))


def sift(
    parts: Iterable[Rows], skipped: SkippedLines | None = None
) -> Iterator[Rows]:
    """Yields the parts; raises the first fault of their rows, or counts all."""
    for part in parts:
        for fault in part.faults:
            if skipped is None:
                raise fault
            skipped.add(fault)
        yield part


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
        few = "few" if row.actual_columns < row.expected_columns else "many"
        faults[int(kept[row.number - 1])] = (
            f"too {few} fields: {row.actual_columns}; a row has "
            f"{row.expected_columns}, separated by {layout.delimiter!r}: "
            + ", ".join([*layout.names[:6], "..."][: len(layout.names)])
        )
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


def is_gzipped(path: str) -> bool:
    """Returns whether a file's first bytes are gzip's."""
    with tf.io.gfile.GFile(path, "rb") as file:
        return bool(file.read(2) == b"\x1f\x8b")


def _open(path: str, offset: int = 0) -> Any:
    """Opens a file, decompressed where it is gzipped, at a layout's offset."""
    with naming(path, "cannot be read"):
        raw = tf.io.gfile.GFile(path, "rb")
        file = gzip.GzipFile(fileobj=raw) if is_gzipped(path) else raw
        start = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
        file.seek(offset or start)
        return file


def _broken_rows(block: Block, layout: Layout) -> dict[int, str]:
    """Returns the faults of rows that pyarrow would bend or pass over."""
    text, faults = block.text, dict[int, str]()
    if layout.judge_end and not text.endswith(b"\n"):
        last = text.rpartition(b"\n")[2]
        cut = layout.judge_end(last.split(layout.delimiter.encode()))
        faults.update({len(block.ends) - 1: cut} if cut else {})
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


def _read(
    text: bytes,
    layout: Layout,
    kinds: Mapping[str, Kind],
    refuse: Callable[[Any], str],
) -> Any:
    """Returns texts, null where empty; rows of other widths are refused."""
    pa: Any = importlib.import_module("pyarrow")
    reader: Any = importlib.import_module("pyarrow.csv")
    types = dict.fromkeys(kinds, pa.binary())
    if not text:
        return pa.schema(types).empty_table()
    delimiter = layout.delimiter
    if len(delimiter) > 1:  # pyarrow takes one byte, which the text lacks.
        other = next(chr(i) for i in range(1, 32) if bytes([i]) not in text)
        text = text.replace(delimiter.encode(), other.encode())
        delimiter = other
    is_quoted = layout.is_quoted and b'"' in text
    size = len(text) + 1
    # Threads, and Arrow's own pool, keep tens of megabytes.
    return reader.read_csv(
        pa.BufferReader(text),
        reader.ReadOptions(
            column_names=layout.names, block_size=size, use_threads=False
        ),
        reader.ParseOptions(
            delimiter=delimiter,
            quote_char='"' if is_quoted else False,
            newlines_in_values=is_quoted,
            ignore_empty_lines=False,
            invalid_row_handler=refuse,
        ),
        reader.ConvertOptions(
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            include_columns=list(types),
        ),
        memory_pool=pa.system_memory_pool(),
    )
