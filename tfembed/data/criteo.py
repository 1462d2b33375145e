"""Click logs in Criteo's format.

The format is that of Criteo's Kaggle set and of its 1 TB set (day_0 to
day_23): a label, 13 integers and 26 categories per line, plain or gzipped.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfembed.data import columns, tables
from tfembed.data.columns import Array, Kind
from tfembed.data.tables import Block, Layout, Rows
from tfembed.errors import DataError
from tfembed.optional_packages import optional

NUM_INTEGERS = 13
NUM_CATEGORIES = 26
INTEGER_NAMES = tuple(f"I{i + 1}" for i in range(NUM_INTEGERS))
CATEGORY_NAMES = tuple(f"C{i + 1}" for i in range(NUM_CATEGORIES))
FIELD_NAMES = ("label", *INTEGER_NAMES, *CATEGORY_NAMES)
NUM_FIELDS = len(FIELD_NAMES)

_INTEGER = Kind("float64", blank=float("nan"), finite=True)
_KINDS = {
    "label": Kind("float32", blank=None, finite=True, among=(0, 1)),
    **dict.fromkeys(INTEGER_NAMES, _INTEGER),
    **dict.fromkeys(CATEGORY_NAMES, Kind("string")),
}


def criteo(
    pattern: str | os.PathLike[str],
    batch_size: int,
    *,
    epochs: int = 1,
    skip_bad_lines: bool = False,
) -> tf.data.Dataset:
    """Reads click logs in Criteo's format as a dataset of batches.

    Args:
      pattern: a path or a glob of files, plain or gzipped, with or without a
        header, separated by tabs or commas.
      batch_size: the number of examples of a batch; the last one may be
        smaller.
      epochs: the number of passes over all files.
      skip_bad_lines: whether to skip bad lines. Otherwise a bad line ends the
        dataset with an error that names the file and the line.

    Returns:
      A dataset of (features, labels). Features: "integers", float64
      [batch, 13], NaN where empty, and "C1" to "C26", string [batch],
      "" where empty. Labels: float32 [batch], 0 or 1.

    Raises:
      DataError: no file matches, or a file is empty or unreadable.
      UnsupportedError: pyarrow is not installed.
    """
    optional("pyarrow", "`tfembed.data.criteo`")
    logs = find_logs(os.fspath(pattern))

    def chunks() -> Iterator[dict[str, Array]]:
        for rows in itertools.chain.from_iterable(map(read_log, logs)):
            if rows.faults and not skip_bad_lines:
                raise rows.faults[0]
            others = {name: rows.columns[name] for name in specs}
            yield {"integers": stacked(rows, INTEGER_NAMES), **others}

    specs = columns.specs({n: _KINDS[n] for n in ("label", *CATEGORY_NAMES)})
    integers = tf.TensorSpec([None, NUM_INTEGERS], tf.float64)
    with_integers = {"integers": integers, **specs}
    return columns.batches(chunks, with_integers, batch_size, "label", epochs)


def stacked(rows: Rows, names: Sequence[str]) -> Array:
    """Returns some columns of a log, [n, number of columns]."""
    return np.stack([rows.columns[name] for name in names], 1)


def find_logs(pattern: str) -> list[Layout]:
    """Returns the files that match a path or glob, sorted.

    Raises:
      DataError: no file matches, or a file is empty or unreadable.
    """
    return [_inspect(path) for path in tables.find_files(pattern)]


def read_log(log: Layout, line: int = 0, offset: int = 0) -> Iterator[Rows]:
    """Yields the rows after `line` lines, at `offset` uncompressed bytes.

    The columns are those of `FIELD_NAMES`: integers are float64, NaN where
    empty. Damage of the file is the last fault of the last rows.
    """
    try:
        for block in tables.read_blocks(log, line, offset):
            block, cut = _without_cut_line(block, log)
            rows = tables.read_rows(block, log, _KINDS)
            yield rows._replace(faults=rows.faults + cut)
    except DataError as error:
        nothing = np.zeros(0, np.int64)
        block = Block(b"", nothing, nothing, offset)
        rows = tables.read_rows(block, log, _KINDS)
        yield rows._replace(faults=[error])


def _inspect(path: str) -> Layout:
    found, log = tables.read_header(path, ("\t", ","))
    names = [name.strip().lower() for name in found]
    log = dataclasses.replace(log, names=FIELD_NAMES)
    if names[0] != "label":
        return dataclasses.replace(log, line=0, offset=0)
    if names != [name.lower() for name in FIELD_NAMES]:
        raise DataError(
            f"the header has {len(names)} columns, {', '.join(names[:3])}, ...;"
            f" it must have the {NUM_FIELDS} columns label, I1, ..., I13, C1, "
            "..., C26",
            path=path,
            line=1,
        )
    if next(tables.read_blocks(log), None) is None:
        raise DataError("only a header, no lines", path=path)
    return log


def _without_cut_line(
    block: Block, log: Layout
) -> tuple[Block, list[DataError]]:
    """Takes off a last line without a line break that is cut.

    Criteo's categories have eight digits: a shorter last one was cut, unless
    the others have other lengths, too: numbers in place of Criteo's own.
    """
    if block.text.endswith(b"\n"):
        return block, []
    last = block.rows()[-1]
    fields = last.split(log.delimiter.encode())
    lengths = {len(field) for field in fields[1 + NUM_INTEGERS : -1]}
    is_whole = lengths - {0, 8} or len(fields[-1]) in (0, 8)
    if len(fields) >= NUM_FIELDS and is_whole:
        return block, []
    text, ends, lines = block.text[: -len(last)], block.ends, block.lines
    cut = DataError(
        f"the file is cut off in the middle of a line: it ends in field "
        f"{len(fields)} of {NUM_FIELDS}, without a line break",
        path=log.path,
        line=int(lines[-1]),
    )
    return Block(text, ends[:-1], lines[:-1], block.offset), [cut]
