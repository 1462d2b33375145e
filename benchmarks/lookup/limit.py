"""The limit: what the machine takes for a step's lines and bytes, no more.

A lookup brings the lines of the distinct rows of a batch, once each, and a
training step changes them and those of their accumulators. Ids are read once,
activations are written and, in training, gradients are read (`machine.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks import machine
from benchmarks.lookup.contender import Contender, Round
from benchmarks.lookup.workload import Batch, Tables


class Limit(Contender):
    """All tables in one stretch of memory; row numbers count through it."""

    def __init__(self, tables: Tables, threads: int) -> None:
        super().__init__(tables, threads)
        self._lines = machine.lines_of(4 * tables.width)
        size = tables.count * tables.rows * self._lines * machine.LINE
        count = 2 if tables.rule else 1  # Values and accumulators.
        self._arenas = [machine.Arena(size) for _ in range(count)]

    def rounds(
        self, batches: Sequence[Batch], form: str, *, train: bool
    ) -> Round:
        activations = batches[0].size * self.tables.features * self.tables.width
        given = activations if train else 0
        stream = machine.Stream(
            np.concatenate([batch.ids for batch in batches]),
            np.zeros(given, np.float32),
            np.zeros(activations, np.float32),
            len(batches),
            self.threads,
        )
        lines = machine.Lines(
            self._arenas[: 2 if train else 1],
            [self._first_lines(batch) for batch in batches],
            self._lines,
            [machine.UPDATE if train else machine.READ],
            self.threads,
        )
        return lambda: max(lines.seconds(), stream.seconds())

    def touched(self) -> np.ndarray:
        """Tells tests of each line whether it was written to since the start."""
        every = np.stack([arena.array() for arena in self._arenas])
        words = every.view(np.uint64).reshape(len(every), -1, 8)
        return words[:, :, 0] != words[:, :, 1]

    def _first_lines(self, batch: Batch) -> np.ndarray:
        """Returns the first line of each distinct row, in the order of use."""
        rows = []
        for f in range(batch.features):
            ids = batch.feature(f)[0]
            used = np.sort(np.unique(ids, return_index=True)[1])
            rows.append((f % self.tables.count) * self.tables.rows + ids[used])
        every = np.concatenate(rows)
        if self.tables.shared:  # Features share rows.
            every = every[np.sort(np.unique(every, return_index=True)[1])]
        return every * self._lines
