"""Inserts into empty tables, memory, and tables that go."""

from __future__ import annotations

from benchmarks.table.cases import (
    GIB,
    LIMIT_INSERTS,
    TFRA_INSERTS,
    WIDTHS,
    Plan,
    Results,
    add_bar,
)

_MOST_BESIDE_A_ROW = 24
_SLOWEST_TO_MEDIAN = 5.0
_MOST_WITH_ADAM = 950  # Bytes a key, growth included.


def run(plan: Plan, results: Results) -> None:
    """Each figure is the best of some fresh processes."""
    for width in WIDTHS:
        best = _inserts(plan, results, width)
        ours = best["tfembed"]
        for peer, bars in (("limit", LIMIT_INSERTS), ("TFRA", TFRA_INSERTS)):
            if peer in best:
                ratio = best[peer]["seconds"] / ours["seconds"]
                name = f"insert w{width} / {peer}"
                add_bar(results, name, bars[width], (("insert", ratio),))
        beside = ours["bytes_per_key"] - 4 * width
        name = f"bytes a key beside the row, width {width}"
        cells = ((f"width {width}", beside / _MOST_BESIDE_A_ROW),)
        add_bar(results, name, 1.0, cells, at_most=True)
        if width == 8:
            ratio = ours["p99"] / ours["median"]
            add_bar(
                results,
                "insert w8: 99th percentile / median batch",
                _SLOWEST_TO_MEDIAN,
                (("p99", ratio),),
                at_most=True,
            )

    _adam_memory(plan, results)


def _adam_memory(plan: Plan, results: Results) -> None:
    with plan.workers("tfembed") as workers:
        filled = workers["tfembed"].call(
            "fill", width=64, n=plan.keys, with_adam=True
        )
    peak = filled["peak"]
    what = "memory at its peak, width 64 with Adam's slots"
    results.figures.append((what, "tfembed", peak / 1e9, "GB"))
    most = _MOST_WITH_ADAM * plan.keys
    add_bar(results, what, 1.0, (("peak", peak / most),), at_most=True)


def _inserts(plan: Plan, results: Results, width: int) -> dict[str, dict]:
    best: dict[str, dict] = {}
    for _ in range(plan.builds):
        for name in ("tfembed", "limit", "TFRA"):
            with plan.workers(name) as workers:
                if name not in workers:
                    continue
                filled = workers[name].call(
                    "fill", width=width, n=plan.keys, touch=4 * GIB
                )
                if name == "tfembed":
                    _drop(plan, results, workers[name], width, filled)
                if (
                    name not in best
                    or filled["seconds"] < best[name]["seconds"]
                ):
                    best[name] = filled
    what = f"insert, growing, width {width}"
    for name, filled in best.items():
        rate = plan.keys / filled["seconds"] / 1e6
        results.figures.append((what, name, rate, "M keys/s"))
        for part in ("median", "p99", "slowest"):
            if part in filled:
                label = f"insert batch, {part}, width {width}"
                results.figures.append((label, name, filled[part] * 1e3, "ms"))
        if "bytes_per_key" in filled:
            label = f"memory, width {width}"
            results.figures.append(
                (label, name, filled["bytes_per_key"], "bytes a key")
            )
    return best


def _drop(plan, results, worker, width, filled) -> None:
    name = f"memory given back by a deleted table, width {width}"
    if any(bar.name == name for bar in results.bars):
        return
    share = worker.call("drop") / (filled["bytes_per_key"] * plan.keys)
    add_bar(results, name, 0.95, (("deleted", share),))
