"""Contenders in processes of their own, which take turns."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping

from benchmarks import environments, measure
from benchmarks.process import Worker

# The interpreters of contenders that need another environment than this one.
PYTHONS = {
    "TFRA": environments.tfra_python,
    "EmbeddingBag": environments.torch_python,
    "FBGEMM": environments.torch_python,
    "FBGEMM row-wise": environments.torch_python,
}


@contextlib.contextmanager
def started(
    session: str, *names: str, threads: int = 2, **options: str
) -> Iterator[dict[str, Worker]]:
    """The processes of some contenders; they end with the block.

    Args:
      session: the module whose `Session` they are.
      names: of the contenders.
      threads: of each.
      options: environment variables to add.
    """
    with contextlib.ExitStack() as stack:
        made = {}
        for name in names:
            python = PYTHONS.get(name, lambda: sys.executable)()
            worker = Worker(
                session,
                name,
                python=python,
                threads=threads,
                environment=options,
            )
            made[name] = stack.enter_context(worker)
        yield made


def medians(
    workers: Mapping[str, Worker], run: str, *, rounds: int
) -> dict[str, float]:
    """Seconds of a run that is prepared, by contender; the first round warms up.

    As `measure.steadied` makes them of the rounds.
    """
    times: dict[str, list[float]] = {name: [] for name in workers}
    for i in range(rounds + 1):
        for name, worker in workers.items():
            seconds = worker.call("run", name=run)
            if i:
                times[name].append(seconds)
    return measure.steadied(times)
