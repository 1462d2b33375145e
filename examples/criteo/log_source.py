"""Click logs as a source of examples."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from criteo import log_parser
from criteo.log_files import LineBlock, LogFile, read_blocks
from criteo.source import Chunk, Position
from tfembed.errors import DataError

_BLOCK_LINES = 4096
_SHOWN = 5
_HEAD_BYTES = 1 << 16


@dataclasses.dataclass
class SkippedLines:
    """The bad lines that were passed over: how many, and the first ones."""

    count: int = 0
    first: list[str] = dataclasses.field(default_factory=list)

    def add(self, text: str) -> None:
        """Counts one more."""
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(text)


class LogSource:
    """Reads logs line by line, `epochs` times; a Source.

    Every `holdout`-th line of a file is held out; 0 holds out none. A bad line
    raises DataError, or with `skip_bad_lines` is counted in `skipped`, once
    however many epochs there are and however often it is read again.
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
        self._last_skipped = (0, 0)  # The file's number and the line.

    def chunks(self, start: Position) -> Iterator[Chunk]:
        """The rows from `start` on that are not held out."""
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
        """The held-out rows. Bad lines are left to `chunks` to judge."""
        if self._holdout:
            for log in self._logs:
                for block in read_blocks(log, 0, 0, _BLOCK_LINES):
                    yield self._chunk(log, block, held_out=True)[0]

    def describe(self, position: Position) -> str:
        """For example `day_0.tsv, line 17, epoch 2`."""
        path = self._logs[position.file].path
        return f"{path}, line {position.line}, epoch {position.epoch + 1}"

    def fingerprint(self) -> str:
        """The files' names, sizes and heads, and which lines are held out."""
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
        """The rows that are (not) held out, and the faults of all lines."""
        columns, bad = log_parser.parse(block.lines, log.delimiter)
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
            place = (number, fault.line or 0)
            if epoch == 0 and place > self._last_skipped:
                self.skipped.add(str(fault))
                self._last_skipped = place


def _rows(chunk: Chunk, places: np.ndarray) -> Chunk:
    return Chunk(
        tf.gather(chunk.labels, places),
        tf.gather(chunk.integers, places),
        tf.gather(chunk.categories, places, axis=1),
        chunk.positions[places],
    )
