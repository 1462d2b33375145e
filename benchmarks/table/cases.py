"""What is measured: each case gives figures to print and bars to judge."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import contest, results
from benchmarks.process import Worker
from benchmarks.results import add_bar
from benchmarks.table.contenders import BEFORE
from benchmarks.table.workload import BATCH

__all__ = ["Plan", "Results", "add_bar", "ratios"]

GIB = 1 << 30
WIDTHS = (8, 64)

SESSION = "benchmarks.table.session"
TFRA_FINDS = {8: 5.0, 64: 7.0}
TFRA_UPSERTS = {8: 5.0, 64: 8.0}
TFRA_INSERTS = {8: 5.0, 64: 10.0}
# Shares of the limit: lines and bytes alone (contenders.Limit), which a table
# that keeps its keys apart from its rows, or looks at what it writes, cannot
# reach. A quarter or more below what one thread reached on Zen 4
# (docs/lab/journal.md).
LIMIT_INSERTS = {8: 0.08, 64: 0.12}
LIMIT_ACCESS = {
    ("find", 8): 0.28,
    ("find", 64): 0.33,
    ("find by call", 8): 0.2,
    ("find by call", 64): 0.28,
    ("find half", 8): 0.2,
    ("find half", 64): 0.25,
    ("upsert", 8): 0.12,
    ("upsert", 64): 0.5,
}
# Its finds have no TensorFlow around them, and a table that cannot grow.
NEIGHBOR_HASH_FINDS = {8: 1.1, 64: 1.0}
# As the limit's arrays, which NumPy puts on huge pages. TFRA has its default
# malloc, as the bars say.
HUGE_BATCHES = {"tfembed": contest.HUGE_PAGES}


class Results(results.Results):
    """Figures, by default of batches of keys, and bars."""

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
      before: another checkout, which takes part as "before"; None: none.
    """

    keys: int
    rounds: int
    builds: int
    folder: str
    with_tfra: bool
    before: str | None = None

    @contextlib.contextmanager
    def workers(
        self,
        *names: str,
        threads: int = 2,
        variables: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Iterator[dict[str, Worker]]:
        """The processes of the contenders that take part."""
        taking_part = [
            name
            for name in names
            if (name != "TFRA" or self.with_tfra)
            and (name != "before" or self.before)
            and contest.can_take_part(name)
        ]
        added = {**(variables or {}), "before": {BEFORE: self.before or ""}}
        with contest.started(
            SESSION, *taking_part, threads=threads, variables=added
        ) as made:
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
        return contest.medians(workers, run, rounds=self.rounds)


def ratios(
    cells: Sequence[tuple[str, dict[str, float]]], peer: str
) -> tuple[tuple[str, float], ...]:
    """How many times faster tfembed is than `peer`, cell by cell."""
    return tuple(
        (what, seconds[peer] / seconds["tfembed"])
        for what, seconds in cells
        if peer in seconds
    )
