"""Finds, upserts, accums and removes in tables that are filled."""

from __future__ import annotations

from typing import Any

from benchmarks.table.cases import (
    TFRA_FINDS,
    TFRA_UPSERTS,
    WIDTHS,
    Plan,
    Results,
    add_bar,
    ratios,
)

FORMS = ("eager", "loop", "call")


def run(plan: Plan, results: Results) -> None:
    """All widths; then DenseHashTable, which needs the memory for itself."""
    for width in WIDTHS:
        with plan.workers("tfembed", "limit", "TFRA") as workers:
            _fill(plan, workers, width)
            finds = _finds(plan, results, workers, width)
            writes = _writes(plan, results, workers, width)
            _judge(results, width, finds, writes)
            _removes(plan, results, workers["tfembed"], width, writes)
            _small(plan, results, workers, width)
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


def _finds(plan, results, workers, width):
    cells = {}
    for form in FORMS:
        cells[form] = plan.medians(
            workers, f"find {form}", work="find", form=form
        )
        results.add_rates(f"find, width {width}, {form}", cells[form])
    cells["half"] = plan.medians(
        workers, "half", work="find", form="eager", missing=0.5
    )
    results.add_rates(f"find, half missing, width {width}", cells["half"])
    cells["zipf"] = plan.medians(
        workers, "zipf", work="find", form="eager", zipf=1.2
    )
    results.add_rates(f"find, Zipf(1.2), width {width}", cells["zipf"])
    return cells


def _writes(plan, results, workers, width):
    cells = {
        "upsert": plan.medians(workers, "upsert", work="upsert", form="eager")
    }
    with_accum = {k: v for k, v in workers.items() if k != "limit"}
    cells["accum"] = plan.medians(
        with_accum, "accum", work="accum", form="eager"
    )
    for work, seconds in cells.items():
        results.add_rates(f"{work}, width {width}", seconds)
    return cells


def _judge(results, width, finds, writes):
    both = [(form, finds[form]) for form in ("eager", "loop")]
    add_bar(results, f"find w{width} / limit", 1.0, ratios(both, "limit"))
    call = [("call", finds["call"])]
    add_bar(
        results, f"find by call w{width} / limit", 0.8, ratios(call, "limit")
    )
    half = [("half", finds["half"])]
    add_bar(results, f"find half w{width} / limit", 0.75, ratios(half, "limit"))
    add_bar(
        results,
        f"find w{width} / TFRA",
        TFRA_FINDS[width],
        ratios([*both, *call], "TFRA"),
    )
    upserts = [("upsert", writes["upsert"])]
    add_bar(results, f"upsert w{width} / limit", 0.85, ratios(upserts, "limit"))
    add_bar(
        results,
        f"upsert w{width} / TFRA",
        TFRA_UPSERTS[width],
        ratios(upserts, "TFRA"),
    )
    accum = writes["upsert"]["tfembed"] / writes["accum"]["tfembed"]
    add_bar(results, f"accum w{width} / upsert", 0.6, (("accum", accum),))
    zipf = finds["eager"]["tfembed"] / finds["zipf"]["tfembed"]
    add_bar(results, f"find Zipf w{width} / uniform", 0.9, (("zipf", zipf),))


def _removes(plan, results, ours, width, writes):
    seconds = sorted(ours.call("remove") for _ in range(plan.rounds))
    median = seconds[len(seconds) // 2]
    results.add_rates(f"remove, width {width}", {"tfembed": median})
    ratio = writes["upsert"]["tfembed"] / median
    add_bar(results, f"remove w{width} / upsert", 0.6, (("remove", ratio),))


def _small(plan, results, workers, width):
    with_ops = {k: v for k, v in workers.items() if k != "limit"}
    seconds = plan.medians(
        with_ops, "small", work="find", form="eager", size=256, count=256
    )
    what = f"256-key eager find, width {width}"
    for contender, value in seconds.items():
        results.figures.append((what, contender, value * 1e6, "us"))
    if "TFRA" in seconds:
        ratio = seconds["tfembed"] / seconds["TFRA"]
        add_bar(results, what, 0.4, (("find", ratio),), at_most=True)
