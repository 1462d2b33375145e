"""Static tables: all widths, both skews, one id and about twenty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.lookup.plan import (
    Cell,
    Plan,
    about,
    add_times,
    label,
    ratios,
)
from benchmarks.results import Results, add_bar, add_limit_bar

FORMS = ("loop", "eager", "call")
_JUDGED = ("loop", "eager")
_KINDS = ("sparse", "ragged")

# The most that a step may take, by ids and peer. Those beside the limit, lines
# and bytes alone, are a quarter above what follows from Zen 5's rates of lines
# and tfembed's times there (docs/lab/journal.md).
_FORWARD = {
    20: {"limit": 2.0, "EmbeddingBag": 1.0, "TensorFlow": 0.2},
    1: {
        "limit": 3.2,
        "EmbeddingBag": 0.8,
        "FBGEMM row-wise": 0.8,
        "TensorFlow": 0.3,
    },
}
_TRAINING = {
    20: {"limit": 2.5, "FBGEMM": 0.15},
    1: {"limit": 4.8, "FBGEMM": 0.2},
}
_BESIDE_ROW_WISE = {"zipf": 0.7, "uniform": 0.9}
_ADDED_MS = {"forward": 2.5, "training": 5.0}

# By (form, ids).
Cells = dict[tuple[str, int], list[Cell]]


def forward(plan: Plan, results: Results) -> None:
    """Lookups."""
    cells: Cells = {}
    added: list[tuple[str, float]] = []
    peers = ("limit", "EmbeddingBag", "FBGEMM row-wise", "TensorFlow")
    for width in plan.widths:
        with plan.workers(width, "tfembed", *peers) as workers:
            _measure(plan, results, workers, width, "forward", cells, FORMS)
            added += _structured(
                plan, results, workers["tfembed"], width, "forward"
            )
    _judge_added(results, "forward", added)
    _judge(results, "forward", cells, _FORWARD)


def exact(plan: Plan, results: Results) -> None:
    """Lookup, gradient and element-wise Adagrad."""
    cells: Cells = {}
    added: list[tuple[str, float]] = []
    for width in plan.widths:
        with plan.workers(width, "tfembed", rule="adagrad") as ours:
            _measure_training(plan, results, ours, width, cells)
            added += _structured(
                plan, results, ours["tfembed"], width, "training"
            )
    _judge_added(results, "training", added)
    _judge(results, "training", cells, _TRAINING)
    for form in _JUDGED:
        for skew in plan.skews:
            chosen = [
                cell
                for ids in (1, 20)
                for cell in cells[form, ids]
                if cell[0].endswith(skew)
            ]
            add_bar(
                results,
                f"training, {skew}, {form} / FBGEMM row-wise",
                _BESIDE_ROW_WISE[skew],
                ratios(chosen, "FBGEMM row-wise"),
                at_most=True,
            )


def _measure_training(
    plan: Plan,
    results: Results,
    ours: Mapping[str, Any],
    width: int,
    cells: Cells,
) -> None:
    """In turns with peers that do not fit into memory together."""
    with (
        plan.workers(width, "FBGEMM row-wise") as row_wise,
        plan.workers(width, "limit", rule="adagrad") as limit,
    ):
        workers = {**ours, **limit, **row_wise}
        _measure(plan, results, workers, width, "training", cells, FORMS)
    with plan.workers(width, "FBGEMM", rule="adagrad") as peer:
        workers = {**ours, **peer}
        _measure(plan, results, workers, width, "training", cells, _JUDGED)
    with plan.workers(width, "TensorFlow", rule="adagrad") as peer:
        workers = {**ours, **peer}
        _measure(plan, results, workers, width, "training", cells, ("call",))


def row_wise(plan: Plan, results: Results) -> None:
    """Training with one accumulator a row, on both sides."""
    cells: Cells = {}
    names = ("tfembed", "FBGEMM row-wise")
    for width in plan.widths:
        with plan.workers(width, *names, rule="row-wise") as workers:
            what = "row-wise training"
            _measure(plan, results, workers, width, what, cells, _JUDGED)
    for form in _JUDGED:
        both = cells[form, 1] + cells[form, 20]
        add_bar(
            results,
            f"row-wise training, {form} / FBGEMM row-wise",
            0.7,
            ratios(both, "FBGEMM row-wise"),
            at_most=True,
        )


def _measure(
    plan: Plan,
    results: Results,
    workers: Mapping[str, Any],
    width: int,
    what: str,
    cells: Cells,
    forms: Sequence[str],
) -> None:
    for work in plan.works(train=what != "forward"):
        for form in forms:
            seconds = plan.compare(workers, form, **work)
            name = label(width, work)
            add_times(results, f"{what}, {name}, {form}", seconds)
            cells.setdefault((form, work["ids"]), []).append((name, seconds))


def _judge(
    results: Results,
    what: str,
    cells: Cells,
    bars: Mapping[int, Mapping[str, float]],
) -> None:
    every = [
        cell for form in FORMS for ids in bars for cell in cells[form, ids]
    ]
    add_limit_bar(results, what, every)
    for ids, by_peer in bars.items():
        for form in _JUDGED:
            for peer, bar in by_peer.items():
                add_bar(
                    results,
                    f"{what}, {about(ids)}, {form} / {peer}",
                    bar,
                    ratios(cells[form, ids], peer),
                    at_most=True,
                )


def _structured(
    plan: Plan, results: Results, ours: Any, width: int, what: str
) -> list[tuple[str, float]]:
    """What 26 composite tensors a call add to concatenated ones in a loop.

    Beside it stands what a call takes that gets them and does nothing, which is
    TensorFlow's part.

    Returns:
      Cells: that time over the bar.
    """
    added = []
    forms = [f"{call} {kind}" for call in ("call", "empty") for kind in _KINDS]
    for work in plan.works(train=what == "training"):
        turns = plan.compare_forms(ours, ("loop", *forms), **work)
        for kind in _KINDS:
            name = f"{label(width, work)}, {kind}"
            more = max(turns.difference(f"call {kind}", "loop"), 0.0)
            empty = turns.of(f"empty {kind}")["tfembed"]
            for contender, seconds in (("tfembed", more), ("nothing", empty)):
                cell = (f"{what} adds, {name}", contender, seconds * 1e3, "ms")
                results.figures.append(cell)
            added.append((name, more * 1e3 / _ADDED_MS[what]))
    return added


def _judge_added(
    results: Results, what: str, added: Sequence[tuple[str, float]]
) -> None:
    add_bar(
        results,
        f"{what}, 26 tensors a call: ms / {_ADDED_MS[what]:g}",
        1.0,
        tuple(added),
        at_most=True,
        is_sum=True,
    )
