"""Click logs as a source of examples: epochs, held-out lines, positions."""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from criteo.source import Chunk, Position
from tfembed.data import SkippedLines
from tfembed.data.criteo import (
    CATEGORY_NAMES,
    INTEGER_NAMES,
    read_log,
    stacked,
)
from tfembed.data.tables import Layout, Rows
from tfembed.errors import DataError

_HEAD_BYTES = 1 << 16


class LogSource:
    """Reads logs line by line, `epochs` times, from any position.

    Every `holdout`-th line of a file is held out; 0 holds out none. A bad line
    raises DataError, or with `skip_bad_lines` is counted in `skipped`, only
    once for all epochs and reads.
    """

    def __init__(
        self,
        logs: Sequence[Layout],
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
                try:
                    for rows in read_log(log, start.line, start.offset):
                        self._judge(rows.faults, epoch, number)
                        yield self._chunk(rows, epoch, number, held_out=False)
                except DataError as damage:  # Nothing after it can be read.
                    self._judge([damage], epoch, number)
                start = Position(epoch, number + 1)
            start = Position(epoch + 1)

    def held_out(self) -> Iterator[Chunk]:
        """Yields the held-out rows; skips bad lines, which `chunks` judges."""
        if self._holdout:
            for number, log in enumerate(self._logs):
                with contextlib.suppress(DataError):
                    for rows in read_log(log):
                        yield self._chunk(rows, 0, number, held_out=True)

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
        self, rows: Rows, epoch: int, file: int, *, held_out: bool
    ) -> Chunk:
        """Returns the held-out or the other rows."""
        positions = np.zeros([len(rows.lines), len(Position._fields)], np.int64)
        positions[:, :2] = epoch, file
        positions[:, 2], positions[:, 3] = rows.lines, rows.ends
        kept: Any = slice(None)
        if self._holdout:
            kept = (rows.lines % self._holdout == 0) == held_out
        return Chunk(
            tf.constant(rows.columns["label"][kept]),
            tf.constant(stacked(rows, INTEGER_NAMES)[kept], tf.float32),
            tf.constant(stacked(rows, CATEGORY_NAMES)[kept].T, tf.string),
            positions[kept],
        )

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
