"""Finds, upserts, accums and removes in tables that are filled."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks import contest
from benchmarks.results import add_limit_bar
from benchmarks.table.cases import (
    HUGE_BATCHES,
    LIMIT_ACCESS,
    NEIGHBOR_HASH_FINDS,
    TFRA_FINDS,
    TFRA_UPSERTS,
    WIDTHS,
    Plan,
    Results,
    add_bar,
    ratios,
)

FORMS = ("eager", "loop", "call")
_SPELLS = 3  # Of turns, each of new processes.

# What is measured of all contenders that can do it, in turns.
_RUNS: dict[str, dict[str, Any]] = {
    **{form: {"work": "find", "form": form} for form in FORMS},
    "half": {"work": "find", "form": "eager", "missing": 0.5},
    "zipf": {"work": "find", "form": "eager", "zipf": 1.2},
    "upsert": {"work": "upsert", "form": "eager"},
    "accum": {"work": "accum", "form": "eager"},
}
# What contenders do that cannot do it all.
_WORKS = {"limit": ("find", "upsert"), "NeighborHash": ("find",)}
_BESIDE_LIMIT = {
    "find": ("eager", "loop"),
    "find by call": ("call",),
    "find half": ("half",),
    "upsert": ("upsert",),
}
_TEXTS = {
    **{form: f"find, {form}" for form in FORMS},
    "half": "find, half missing",
    "zipf": "find, Zipf(1.2)",
    "upsert": "upsert",
    "accum": "accum",
}


def run(plan: Plan, results: Results) -> None:
    """All widths; then DenseHashTable, which needs the memory for itself.

    Where a table comes to lie in memory makes up to a fifth of its time: ours
    and the limit's are made anew in each spell. TFRA, whose table takes half a
    minute to fill, has one for all of them.
    """
    for width in WIDTHS:
        spells = []
        with plan.workers("TFRA") as peers:
            _fill(plan, peers, width)
            for spell in range(_SPELLS):
                with plan.workers(
                    "tfembed", "limit", "NeighborHash", variables=HUGE_BATCHES
                ) as own:
                    _fill(plan, own, width)
                    spells.append(_turns(plan, {**own, **peers}))
                    if spell == _SPELLS - 1:
                        _removes(plan, results, own["tfembed"], width)
                        _small(plan, results, {**own, **peers}, width)
        turns = contest.Turns.joined(spells)
        for name, text in _TEXTS.items():
            results.add_rates(f"{text}, width {width}", turns.of(name))
        _judge(results, width, turns)
        with plan.workers("tfembed", "Dense") as workers:
            _fill(plan, workers, width)
            what = f"find, width {width}, beside Dense"
            seconds = plan.medians(workers, "find", work="find", form="eager")
            results.add_rates(what, seconds)
            add_bar(
                results,
                f"find width {width} / DenseHashTable",
                1.0,
                ratios([(what, seconds)], "Dense"),
            )


def _fill(plan: Plan, workers: dict[str, Any], width: int) -> None:
    for worker in workers.values():
        worker.call("fill", width=width, n=plan.keys)


def _turns(plan: Plan, workers: dict[str, Any]) -> contest.Turns:
    runs = {}
    for name, prepared in _RUNS.items():
        runs[name] = {
            contender: worker
            for contender, worker in workers.items()
            if prepared["work"] in _WORKS.get(contender, (prepared["work"],))
        }
        for worker in runs[name].values():
            worker.call("prepare", name=name, **prepared)
    rounds = max(1, plan.rounds // _SPELLS)
    return contest.take_turns(runs, rounds=rounds)


def _judge(results: Results, width: int, turns: contest.Turns) -> None:
    every = [
        (name, turns.of(name))
        for names in _BESIDE_LIMIT.values()
        for name in names
    ]
    add_limit_bar(results, f"width {width}", every)
    for what, names in _BESIDE_LIMIT.items():
        cells = [(name, turns.of(name)) for name in names]
        bar = LIMIT_ACCESS[what, width]
        name = f"{what} w{width} / limit"
        add_bar(results, name, bar, ratios(cells, "limit"))
    cells = [(name, turns.of(name)) for name in FORMS]
    name = f"find w{width} / NeighborHash"
    bar = NEIGHBOR_HASH_FINDS[width]
    add_bar(results, name, bar, ratios(cells, "NeighborHash"))
    for what, bars, names in (
        ("find", TFRA_FINDS, FORMS),
        ("upsert", TFRA_UPSERTS, ("upsert",)),
    ):
        cells = [(name, turns.of(name)) for name in names]
        name = f"{what} w{width} / TFRA"
        add_bar(results, name, bars[width], ratios(cells, "TFRA"))
    accum = turns.ratio("upsert", "accum")
    add_bar(results, f"accum w{width} / upsert", 0.6, (("accum", accum),))
    zipf = turns.ratio("eager", "zipf")
    add_bar(results, f"find Zipf w{width} / uniform", 0.9, (("zipf", zipf),))


def _removes(plan, results, ours, width):
    upserts, removes = [], []
    for _ in range(plan.rounds):
        upserts.append(ours.call("run", name="upsert"))
        removes.append(ours.call("remove"))
    median = statistics.median(removes)
    results.add_rates(f"remove, width {width}", {"tfembed": median})
    ratio = statistics.median(
        upsert / remove for upsert, remove in zip(upserts, removes, strict=True)
    )
    add_bar(results, f"remove w{width} / upsert", 0.6, (("remove", ratio),))


def _small(plan, results, workers, width):
    with_ops = {k: v for k, v in workers.items() if k not in _WORKS}
    seconds = plan.medians(
        with_ops, "small", work="find", form="eager", size=256, count=256
    )
    what = f"256-key eager find, width {width}"
    for contender, value in seconds.items():
        results.figures.append((what, contender, value * 1e6, "us"))
    if "TFRA" in seconds:
        ratio = seconds["tfembed"] / seconds["TFRA"]
        add_bar(results, what, 0.4, (("find", ratio),), at_most=True)
