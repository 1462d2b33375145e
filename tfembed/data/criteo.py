"""Click logs in Criteo's format.

The format is that of Criteo's Kaggle set and of its 1 TB set (day_0 to
day_23): a label, 13 integers and 26 categories per line, plain or gzipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfembed import checks
from tfembed.data import tables
from tfembed.data.tables import Array, Block, Kind, Layout
from tfembed.errors import DataError
from tfembed.optional_packages import optional

NUM_INTEGERS = 13
NUM_CATEGORIES = 26
INTEGER_NAMES = tuple(f"I{i + 1}" for i in range(NUM_INTEGERS))
CATEGORY_NAMES = tuple(f"C{i + 1}" for i in range(NUM_CATEGORIES))
FIELD_NAMES = ("label", *INTEGER_NAMES, *CATEGORY_NAMES)
NUM_FIELDS = len(FIELD_NAMES)

_INTEGER = Kind("float32", blank=float("nan"), finite=True, exact=False)
_KINDS = {
    "label": Kind("float32", blank=None, finite=True, among=(0, 1)),
    **dict.fromkeys(INTEGER_NAMES, _INTEGER),
    **dict.fromkeys(CATEGORY_NAMES, Kind("string")),
}


class LogRows(NamedTuple):
    """Some rows of a click log.

    Attributes:
      labels: float32 [n], 0 or 1.
      integers: float32 [n, 13], NaN where empty.
      categories: bytes [n, 26], empty where empty.
      lines: int64 [n], the number of each line.
      ends: int64 [n], the offset after each line, in uncompressed bytes.
      faults: the faults of the bad lines among them, in order.
    """

    labels: Array
    integers: Array
    categories: Array
    lines: Array
    ends: Array
    faults: list[DataError]


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
      A dataset of (features, labels). Features: "integers", float32
      [batch, 13], rounded, NaN where empty, and "C1" to "C26", string [batch],
      "" where empty. Labels: float32 [batch], 0 or 1.

    Raises:
      DataError: no file matches, or a file is empty or unreadable.
      UnsupportedError: pyarrow is not installed.
    """
    optional("pyarrow", "`tfembed.data.criteo`")
    batch_size = checks.integer(batch_size, "batch_size", least=1)
    epochs = checks.integer(epochs, "epochs", least=1)
    logs = find_logs(os.fspath(pattern))

    def chunks() -> Iterator[tuple[Array, Array, Array]]:
        for log in logs * epochs:
            for rows in read_log(log):
                if rows.faults and not skip_bad_lines:
                    raise rows.faults[0]
                yield rows.integers, rows.categories, rows.labels

    dataset = tf.data.Dataset.from_generator(
        chunks,
        output_signature=(
            tf.TensorSpec([None, NUM_INTEGERS], tf.float32),
            tf.TensorSpec([None, NUM_CATEGORIES], tf.string),
            tf.TensorSpec([None], tf.float32),
        ),
    )

    def named(
        integers: tf.Tensor, categories: tf.Tensor, labels: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        columns = tf.unstack(categories, axis=1)
        features = dict(zip(CATEGORY_NAMES, columns))
        return {"integers": integers, **features}, labels

    return dataset.rebatch(batch_size).map(named).prefetch(2)


def find_logs(pattern: str) -> list[Layout]:
    """Returns the files that match a path or glob, sorted.

    Raises:
      DataError: no file matches, or a file is empty or unreadable.
    """
    return [_inspect(path) for path in tables.find_files(pattern)]


def read_log(log: Layout, line: int = 0, offset: int = 0) -> Iterator[LogRows]:
    """Yields the rows after `line` lines, at `offset` uncompressed bytes.

    Damage of the file is the last fault of the last rows.
    """
    blocks = tables.read_blocks(log, line, offset)
    last = Block(b"", line, offset)
    while True:
        cut = None
        try:
            block = next(blocks, None)
        except DataError as error:
            block, cut = last._replace(text=b""), error
        if block is None:
            return
        if not block.text.endswith(b"\n") and cut is None:
            block, cut = _without_cut_line(block, log)
        rows = tables.read_rows(block, log, _KINDS)
        columns = rows.columns
        yield LogRows(
            columns["label"],
            np.stack([columns[name] for name in INTEGER_NAMES], 1),
            np.stack([columns[name] for name in CATEGORY_NAMES], 1),
            block.line + 1 + rows.good,
            block.offset + tables.row_ends(block.text, "none")[rows.good],
            rows.faults + ([cut] if cut else []),
        )
        last = block


def _inspect(path: str) -> Layout:
    head, _ = tables.read_head(path, "none")
    line, _, rest = head.text.partition(b"\n")
    # Look at several lines: the first one may be bad.
    by_tabs = head.text.count(b"\t") >= head.text.count(b",")
    delimiter = "\t" if by_tabs else ","
    names = [name.strip() for name in line.decode("latin-1").split(delimiter)]
    if names[0].lower() != "label":
        return Layout(path, FIELD_NAMES, delimiter, "none", 0, head.offset)
    if [n.lower() for n in names] != [n.lower() for n in FIELD_NAMES]:
        raise DataError(
            f"the header has {len(names)} columns, {', '.join(names[:3])}, ...;"
            f" it must have the {NUM_FIELDS} columns label, I1, ..., I13, C1, "
            "..., C26",
            path=path,
            line=1,
        )
    if not rest:
        raise DataError("only a header, no lines", path=path)
    offset = head.offset + len(line) + 1
    return Layout(path, FIELD_NAMES, delimiter, "none", 1, offset)


def _without_cut_line(
    block: Block, log: Layout
) -> tuple[Block, DataError | None]:
    """Takes off a last line without a line break that is cut.

    Criteo's categories have eight digits: a shorter last one was cut, unless
    the others have other lengths, too: numbers in place of Criteo's own.
    """
    start = block.text.rfind(b"\n") + 1
    fields = block.text[start:].split(log.delimiter.encode())
    lengths = {len(field) for field in fields[1 + NUM_INTEGERS : -1]}
    is_whole = lengths - {0, 8} or len(fields[-1]) in (0, 8)
    if len(fields) >= NUM_FIELDS and is_whole:
        return block, None
    line = block.line + block.text.count(b"\n") + 1
    error = DataError(
        f"the file is cut off in the middle of a line: it ends in field "
        f"{len(fields)} of {NUM_FIELDS}, without a line break",
        path=log.path,
        line=line,
    )
    return block._replace(text=block.text[:start]), error
