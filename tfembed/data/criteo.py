"""Click logs in Criteo's format.

The format is that of Criteo's Kaggle set and of its 1 TB set (day_0 to
day_23): a label, 13 integers and 26 categories per line, plain or gzipped.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfembed.data import columns, tables
from tfembed.data.columns import Array, Kind
from tfembed.data.tables import Layout, Rows, SkippedLines
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

    def read(log: Layout) -> Iterator[dict[str, Array]]:
        skipped = SkippedLines() if skip_bad_lines else None
        for rows in tables.sift(read_log(log), skipped):
            others = {name: rows.columns[name] for name in kinds}
            yield {"integers": stacked(rows, INTEGER_NAMES), **others}

    kinds = {name: _KINDS[name] for name in ("label", *CATEGORY_NAMES)}
    integers = dataclasses.replace(_INTEGER, shape=(NUM_INTEGERS,))
    return columns.batches(
        read, logs, {"integers": integers, **kinds}, batch_size, "label", epochs
    )


def stacked(rows: Rows, names: Sequence[str]) -> Array:
    """Returns some columns of a log, [n, number of columns]."""
    return np.stack([rows.columns[name] for name in names], 1)


def find_logs(pattern: str) -> list[Layout]:
    """Returns the files that match a path or glob; raises as `criteo`."""
    return [_inspect(path) for path in tables.find_files(pattern)]


def read_log(log: Layout, line: int = 0, offset: int = 0) -> Iterator[Rows]:
    """Yields the rows after `line` lines, at `offset` uncompressed bytes.

    The columns are those of `FIELD_NAMES`: integers are float64, NaN where
    empty. Damage of the file is an error after the rows before it.
    """
    if line:
        log = dataclasses.replace(log, line=line, offset=offset)
    return tables.read(log, _KINDS)


def _inspect(path: str) -> Layout:
    log = tables.read_header(path, ("\t", ","))
    names = [name.strip().lower() for name in log.names]
    log = dataclasses.replace(log, names=FIELD_NAMES, judge_end=_judge_end)
    if names[0] != "label":
        return dataclasses.replace(log, line=0, offset=0)
    if names != [name.lower() for name in FIELD_NAMES]:
        what = (
            f"the header has {len(names)} columns, {', '.join(names[:3])}, ...;"
            f" it must have the {NUM_FIELDS} columns label, I1, ..., I13, C1, "
            "..., C26"
        )
        raise DataError(what, path=path, line=1)
    if next(tables.read_blocks(log), None) is None:
        raise DataError("only a header, no lines", path=path)
    return log


def _judge_end(fields: list[bytes]) -> str:
    """Returns the fault of a last line without a line break that is cut.

    Criteo's categories have eight digits: a shorter last one was cut, unless
    the others have other lengths, too: numbers in place of Criteo's own.
    """
    lengths = {len(field) for field in fields[1 + NUM_INTEGERS : -1]}
    is_whole = lengths - {0, 8} or len(fields[-1]) in (0, 8)
    if len(fields) >= NUM_FIELDS and is_whole:
        return ""
    return (
        "the file is cut off in the middle of a line: it ends in field "
        f"{len(fields)} of {NUM_FIELDS}, without a line break"
    )
