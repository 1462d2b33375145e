"""Click logs in Criteo's format: as a dataset, or as chunks with positions.

The format is that of Criteo's Kaggle set and of its 1 TB set (day_0 to
day_23): a label, 13 integers and 26 categories per line, plain or gzipped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfembed import checks
from tfembed.data.logs import (
    CATEGORY_NAMES,
    NUM_CATEGORIES,
    NUM_INTEGERS,
    LineBlock,
    LogFile,
    SkippedLines,
    find_logs,
    parse_lines,
    read_blocks,
)
from tfembed.errors import DataError

_BLOCK_LINES = 4096
_HEAD_BYTES = 1 << 16


class Position(NamedTuple):
    """The position where a source continues; a planted stream has only `line`.

    Attributes:
      epoch: the number of finished passes over all files.
      file: the number of the file.
      line: the number of lines read of it; for a planted stream, of examples
        drawn.
      offset: the number of bytes read of it, uncompressed.
    """

    epoch: int = 0
    file: int = 0
    line: int = 0
    offset: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows of a click log.

    Attributes:
      labels: float32 [n], 0 or 1.
      integers: float32 [n, 13], NaN where empty.
      categories: string [26, n], "" where empty.
      positions: int64 [n, 4], the Position after each row.
    """

    labels: tf.Tensor
    integers: tf.Tensor
    categories: tf.Tensor
    positions: np.ndarray[Any, Any]


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
      [batch, 13], NaN where empty, and "C1" to "C26", string [batch], "" where
      empty. Labels: float32 [batch], 0 or 1.

    Raises:
      DataError: no file matches, or a file is empty or unreadable.
    """
    batch_size = checks.integer(batch_size, "batch_size", least=1)
    logs = find_logs(os.fspath(pattern))
    options = {
        "epochs": checks.integer(epochs, "epochs", least=1),
        "holdout": 0,
    }

    def chunks() -> Iterator[tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
        source = LogSource(logs, skip_bad_lines=skip_bad_lines, **options)
        for chunk in source.chunks(Position()):
            categories = tf.transpose(chunk.categories)
            yield chunk.integers, categories, chunk.labels

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


class LogSource:
    """Reads logs line by line, `epochs` times, from any position.

    Every `holdout`-th line of a file is held out; 0 holds out none. A bad line
    raises DataError, or with `skip_bad_lines` is counted in `skipped`, only
    once for all epochs and reads.
    """

    def __init__(
        self,
        logs: Sequence[LogFile],
        *,
        epochs: int = 1,
        holdout: int = 10,
        skip_bad_lines: bool = False,
    ) -> None:
        self._logs = list(logs)
        self._epochs = epochs
        self._holdout = holdout
        self._skip_bad_lines = skip_bad_lines
        self.skipped = SkippedLines()
        self._last_skipped = (0, 0)  # The number of the file, and the line.

    def chunks(self, start: Position) -> Iterator[Chunk]:
        """Yields the rows from `start` on that are not held out."""
        for epoch in range(start.epoch, self._epochs):
            for number in range(start.file, len(self._logs)):
                log = self._logs[number]
                for block in read_blocks(
                    log, start.line, start.offset, _BLOCK_LINES
                ):
                    chunk, faults = self._chunk(log, block, held_out=False)
                    self._judge(faults, epoch, number)
                    chunk.positions[:, :2] = epoch, number
                    yield chunk
                start = Position(epoch, number + 1)
            start = Position(epoch + 1)

    def held_out(self) -> Iterator[Chunk]:
        """Yields the held-out rows; skips bad lines, which `chunks` judges."""
        if self._holdout:
            for log in self._logs:
                for block in read_blocks(log, 0, 0, _BLOCK_LINES):
                    yield self._chunk(log, block, held_out=True)[0]

    def describe(self, position: Position) -> str:
        """Describes a position, for example `day_0.tsv, line 17, epoch 2`."""
        path = self._logs[position.file].path
        return f"{path}, line {position.line}, epoch {position.epoch + 1}"

    def fingerprint(self) -> str:
        """Describes the source, to compare it with that of a checkpoint.

        The text has a hash of the files' names, sizes and heads, and `holdout`.
        """
        paths = [pathlib.Path(log.path) for log in self._logs]
        files = [f"{path.name} {path.stat().st_size}" for path in paths]
        content = hashlib.sha256("\n".join(files).encode())
        for path in paths:
            with path.open("rb") as file:
                content.update(file.read(_HEAD_BYTES))
        digest = content.hexdigest()[:8]
        return (
            f"{len(files)} log files from {files[0]} bytes on ({digest}), "
            f"holdout {self._holdout}"
        )

    def _chunk(
        self, log: LogFile, block: LineBlock, *, held_out: bool
    ) -> tuple[Chunk, list[DataError]]:
        """Returns the held-out or the other rows, and faults of all lines."""
        columns, bad = parse_lines(block.lines, log.delimiter)
        numbers = block.first_line + np.arange(len(block.lines))
        faults = [
            DataError(text, path=log.path, line=int(numbers[i]))
            for i, text in bad.items()
        ]
        if block.fault is not None:
            end = block.first_line + len(block.lines)
            faults.append(DataError(block.fault, path=log.path, line=end))
        good = np.delete(np.arange(len(numbers)), list(bad))
        positions = np.zeros([len(good), len(Position._fields)], np.int64)
        positions[:, 2] = numbers[good]
        positions[:, 3] = np.asarray(block.ends, np.int64)[good]
        chunk = Chunk(*columns, positions)
        if not self._holdout:
            return chunk, faults
        is_held_out = positions[:, 2] % self._holdout == 0
        return _rows(chunk, np.flatnonzero(is_held_out == held_out)), faults

    def _judge(
        self, faults: Sequence[DataError], epoch: int, number: int
    ) -> None:
        for fault in faults:
            if not self._skip_bad_lines:
                raise fault
            position = (number, fault.line or 0)
            if epoch == 0 and position > self._last_skipped:
                self.skipped.add(fault)
                self._last_skipped = position


def _rows(chunk: Chunk, rows: np.ndarray[Any, Any]) -> Chunk:
    return Chunk(
        tf.gather(chunk.labels, rows),
        tf.gather(chunk.integers, rows),
        tf.gather(chunk.categories, rows, axis=1),
        chunk.positions[rows],
    )
