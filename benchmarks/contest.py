"""Contenders in processes of their own, which take turns."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence

from benchmarks import environments, measure
from benchmarks.process import Worker

# malloc asks for huge pages.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# The contenders that need another environment than this one.
ENVIRONMENTS = {
    "TFRA": environments.TFRA,
    "EmbeddingBag": environments.TORCH,
    "FBGEMM": environments.TORCH,
    "FBGEMM row-wise": environments.TORCH,
    "IPEX": environments.IPEX,
    "zentf": environments.ZENTF,
    "zentf safe": environments.ZENTF,
    "zentf frozen": environments.ZENTF,
}


@functools.cache
def can_take_part(name: str) -> bool:
    """Tells whether a contender's environment is there; prints once why not."""
    if name not in ENVIRONMENTS:
        return True
    try:
        return bool(ENVIRONMENTS[name].python)
    except environments.UnavailableError as error:
        print(f"{name} does not take part: {error}", flush=True)
        return False


@contextlib.contextmanager
def started(
    session: str,
    *names: str,
    threads: int = 2,
    variables: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[dict[str, Worker]]:
    """The processes of some contenders; they end with the block.

    Args:
      session: the module whose `Session` they are.
      names: of the contenders.
      threads: of each.
      variables: of the environment, to add, by contender.
    """
    with contextlib.ExitStack() as stack:
        made = {}
        for name in names:
            python, own = sys.executable, {}
            if name in ENVIRONMENTS:
                python = ENVIRONMENTS[name].python
                own = dict(ENVIRONMENTS[name].variables)
            worker = Worker(
                session,
                name,
                python=python,
                threads=threads,
                environment={**own, **(variables or {}).get(name, {})},
            )
            made[name] = stack.enter_context(worker)
        yield made


@dataclasses.dataclass(frozen=True)
class Turns:
    """What runs took that several contenders took turns with.

    Attributes:
      seconds: of each round, by run and contender.
    """

    seconds: Mapping[tuple[str, str], Sequence[float]]

    @classmethod
    def joined(cls, spells: Sequence[Turns]) -> Turns:
        """The rounds of some spells of the same runs, as if of one."""
        return cls(
            {
                cell: [
                    taken for spell in spells for taken in spell.seconds[cell]
                ]
                for cell in spells[0].seconds
            }
        )

    def of(self, run: str) -> dict[str, float]:
        """Seconds of one run by contender, as `measure.steadied` makes them."""
        return measure.steadied(
            {
                contender: seconds
                for (name, contender), seconds in self.seconds.items()
                if name == run
            }
        )

    def ratio(self, run: str, other: str) -> float:
        """tfembed's seconds of one run over those of another one, by round."""
        return statistics.median(a / b for a, b in self._pairs(run, other))

    def difference(self, run: str, other: str) -> float:
        """tfembed's seconds of one run less those of another one, by round."""
        return statistics.median(a - b for a, b in self._pairs(run, other))

    def _pairs(self, run: str, other: str) -> Iterator[tuple[float, float]]:
        one, two = self.seconds[run, "tfembed"], self.seconds[other, "tfembed"]
        return zip(one, two, strict=True)


def take_turns(
    runs: Mapping[str, Mapping[str, Worker]], *, rounds: int
) -> Turns:
    """Runs that are prepared, in turns of all runs and contenders.

    Contenders of a run come one after the other, and every second round goes
    backwards, so that nobody is always the first one in a faster minute. The
    first round warms up.

    Args:
      runs: the workers of each run, by contender.
      rounds: that count.
    """
    turns = [
        (run, contender, worker)
        for run, workers in runs.items()
        for contender, worker in workers.items()
    ]
    seconds: dict[tuple[str, str], list[float]] = {
        (run, contender): [] for run, contender, _ in turns
    }
    for i in range(rounds + 1):
        for run, contender, worker in turns[:: -1 if i % 2 else 1]:
            taken = worker.call("run", name=run)
            if i:
                seconds[run, contender].append(taken)
    return Turns(seconds)


def medians(
    workers: Mapping[str, Worker], run: str, *, rounds: int
) -> dict[str, float]:
    """Seconds of a run that is prepared, by contender, in turns."""
    return take_turns({run: workers}, rounds=rounds).of(run)
