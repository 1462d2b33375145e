"""What is measured: each case gives figures to print and bars to judge."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.table import environments
from benchmarks.table.bars import Bar
from benchmarks.table.process import Worker
from benchmarks.table.workload import BATCH

GIB = 1 << 30
WIDTHS = (8, 64)

# What, contender, value, unit.
Figure = tuple[str, str, float, str]
TFRA_FINDS = {8: 5.0, 64: 7.0}
TFRA_UPSERTS = {8: 5.0, 64: 8.0}
TFRA_INSERTS = {8: 5.0, 64: 10.0}
LIMIT_INSERTS = {8: 0.2, 64: 0.15}


@dataclasses.dataclass
class Results:
    """What was measured.

    Attributes:
      figures: in the order in which they are printed.
      bars: what they are judged by.
    """

    figures: list[Figure] = dataclasses.field(default_factory=list)
    bars: list[Bar] = dataclasses.field(default_factory=list)

    def add_rates(self, what: str, seconds: dict[str, float]) -> None:
        """Seconds a batch, as M keys/s."""
        for contender, value in seconds.items():
            self.figures.append(
                (what, contender, BATCH / value / 1e6, "M keys/s")
            )


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
      keys: in a table.
      rounds: interleaved rounds of each run.
      builds: fresh processes for each insert figure.
      folder: for files; on the disk that is to be judged.
      with_tfra: whether TFRA takes part.
    """

    keys: int
    rounds: int
    builds: int
    folder: str
    with_tfra: bool

    @contextlib.contextmanager
    def workers(
        self, *names: str, threads: int = 2
    ) -> Iterator[dict[str, Worker]]:
        """The processes of the contenders that take part."""
        with contextlib.ExitStack() as stack:
            made = {}
            for name in names:
                if name == "TFRA" and not self.with_tfra:
                    continue
                python = {}
                if name == "TFRA":
                    python = {"python": environments.tfra_python()}
                worker = Worker(name, threads=threads, **python)
                made[name] = stack.enter_context(worker)
            yield made

    def medians(
        self, workers: dict[str, Worker], run: str, **prepared: Any
    ) -> dict[str, float]:
        """Median seconds a batch of each worker, in turns."""
        for worker in workers.values():
            worker.call("prepare", name=run, **prepared)
        return self.turns(workers, run)

    def turns(self, workers: dict[str, Worker], run: str) -> dict[str, float]:
        """The medians of a run that is prepared; the first round warms up."""
        times: dict[str, list[float]] = {name: [] for name in workers}
        for i in range(self.rounds + 1):
            for name, worker in workers.items():
                seconds = worker.call("run", name=run)
                if i:
                    times[name].append(seconds)
        return {name: statistics.median(t) for name, t in times.items()}


def ratios(
    cells: Sequence[tuple[str, dict[str, float]]], peer: str
) -> tuple[tuple[str, float], ...]:
    """How many times faster tfembed is than `peer`, cell by cell."""
    return tuple(
        (what, seconds[peer] / seconds["tfembed"])
        for what, seconds in cells
        if peer in seconds
    )


def add_bar(
    results: Results,
    name: str,
    bar: float,
    cells: tuple[tuple[str, float], ...],
    **options: Any,
) -> None:
    """Adds a bar where there are cells to judge."""
    if cells:
        results.bars.append(Bar(name, bar, cells, **options))
