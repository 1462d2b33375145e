"""Beside what Intel and AMD give for their processors: IPEX and zentf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.lookup.plan import Cell, Plan, add_times, label, ratios
from benchmarks.results import Results, add_bar

# Few enough for a graph, which holds at most 2 GB of constants.
_FROZEN_ROWS = 50_000
_KINDS = (("forward", ""), ("training", "adagrad"))
# The most of their time that a step may take.
_IPEX = {"forward": 0.9, "training": 0.75}
_ZENTF = {"zentf": 0.4, "zentf safe": 0.4, "zentf frozen": 0.6}


def ipex(plan: Plan, results: Results) -> None:
    """MergedEmbeddingBagWithAdaGrad, whose update is exact as ours."""
    for what, rule in _KINDS:
        cells: list[Cell] = []
        for width in plan.widths:
            names = ("tfembed", "IPEX")
            with plan.workers(width, *names, rule=rule) as workers:
                cells += _cells(plan, results, workers, width, what, "loop")
        add_bar(
            results,
            f"{what}, loop / IPEX",
            _IPEX[what],
            ratios(cells, "IPEX"),
            at_most=True,
        )


def zentf(plan: Plan, results: Results) -> None:
    """TensorFlow's lookups with zentf: of variables, and in frozen graphs."""
    cells: list[Cell] = []
    for width in plan.widths:
        names = ("tfembed", "TensorFlow", "zentf", "zentf safe")
        with plan.workers(width, *names) as workers:
            cells += _cells(plan, results, workers, width, "forward", "call")
        frozen = ("tfembed", "TensorFlow frozen", "zentf frozen")
        rows = min(_FROZEN_ROWS, plan.rows(width))
        with plan.workers(width, *frozen, rows=rows) as workers:
            what = f"forward, {rows:,} rows"
            cells += _cells(plan, results, workers, width, what, "call")
    for peer, bar in _ZENTF.items():
        add_bar(
            results,
            f"forward, call / {peer}",
            bar,
            ratios(cells, peer),
            at_most=True,
        )


def _cells(
    plan: Plan,
    results: Results,
    workers: Mapping[str, Any],
    width: int,
    what: str,
    form: str,
) -> list[Cell]:
    if len(workers) == 1:  # No peer takes part.
        return []
    cells = []
    for work in plan.works(train=what == "training"):
        seconds = plan.compare(workers, form, **work)
        name = label(width, work)
        add_times(results, f"{what}, {name}, {form}", seconds)
        cells.append((name, seconds))
    return cells
