"""What a second thread gives, beside what it gives the limit."""

from __future__ import annotations

import contextlib
import itertools
import statistics

from benchmarks import contest
from benchmarks.process import Worker
from benchmarks.table.cases import HUGE_BATCHES, Plan, Results, add_bar

_SPELLS = 5  # Of turns, each of new processes.
_WORKS = ("find", "upsert")
_FORMS = ("eager", "loop")
_COUNTS = (1, 2)


def run(plan: Plan, results: Results) -> None:
    """Finds and upserts by 1 and by 2 threads.

    The limit does both in one process, on one table. TensorFlow is given its
    threads once; so there are two processes of ours, whose tables lie elsewhere
    in memory, which makes a fifth of the time: each spell has new ones. Cores of
    a virtual machine share a cache in one minute and none in the next, and words
    go from one to the other four times as slowly then: spells see to that, too.
    The median of three was between 0.86 and 1.06 of the limit's gain in runs of
    one morning.
    """
    for width in (8, 64):
        gains: dict[tuple[str, str, str], list[float]] = {}
        trips = []
        with plan.workers("limit") as workers:
            limit = workers["limit"]
            limit.call("fill", width=width, n=plan.keys)
            for _ in range(_SPELLS):
                trips.append(limit.call("round_trip"))
                for cell, gain in _spell(plan, width, limit).items():
                    gains.setdefault(cell, []).append(gain)
        what = f"a word there and back, width {width}"
        for kind, value in (
            ("median", statistics.median(trips)),
            ("most", max(trips)),
        ):
            results.figures.append((what, kind, value * 1e9, "ns"))
        _add_gains(results, width, gains)


def _spell(
    plan: Plan, width: int, limit: Worker
) -> dict[tuple[str, str, str], float]:
    """Times by one thread over those by two, by work, form and contender."""
    runs: dict[str, dict[str, Worker]] = {}
    with contextlib.ExitStack() as stack:
        for threads in _COUNTS:
            made = plan.workers(
                "tfembed", threads=threads, variables=HUGE_BATCHES
            )
            own = stack.enter_context(made)["tfembed"]
            own.call("fill", width=width, n=plan.keys)
            for work, form in itertools.product(_WORKS, _FORMS):
                prepared = {
                    "name": _run_name(work, form, threads),
                    "work": work,
                    "form": form,
                }
                own.call("prepare", **prepared)
                limit.call("prepare", threads=threads, **prepared)
                runs[prepared["name"]] = {"tfembed": own, "limit": limit}
        turns = contest.take_turns(runs, rounds=plan.rounds)
    gains = {}
    for work, form in itertools.product(_WORKS, _FORMS):
        one, two = (turns.of(_run_name(work, form, n)) for n in _COUNTS)
        for contender in one:
            gains[work, form, contender] = one[contender] / two[contender]
    return gains


def _run_name(work: str, form: str, threads: int) -> str:
    return f"{work}, {form}, {threads}"


def _add_gains(
    results: Results,
    width: int,
    gains: dict[tuple[str, str, str], list[float]],
) -> None:
    for work in _WORKS:
        cells = []
        for form in _FORMS:
            own, of_limit = (
                statistics.median(gains[work, form, contender])
                for contender in ("tfembed", "limit")
            )
            what = f"{work}, {form}, 2 threads / 1, width {width}"
            results.figures.append((what, "tfembed", own, "x"))
            results.figures.append((what, "limit", of_limit, "x"))
            cells.append((form, own / of_limit))
        name = f"{work} scaling w{width} / limit's"
        add_bar(results, name, 0.9, tuple(cells))
