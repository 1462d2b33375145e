"""Training, structured keys, string keys, other widths."""

from __future__ import annotations

import contextlib

from benchmarks import contest
from benchmarks.table import workload
from benchmarks.table.cases import Plan, Results, add_bar

_TRAINED_KEYS = 1_000_000
_OTHER_WIDTHS = (100, 128, 256, 512, 1024)
_WIDE_BYTES = 2_000_000_000  # Of one table's rows; all are there at once.


def training(plan: Plan, results: Results) -> None:
    """Lookup, gradient, fused Adam on 65,536 uniform ids of 1 million."""
    for width in (16, 64):
        with plan.workers("tfembed", "TFRA") as workers:
            n = min(plan.keys, _TRAINED_KEYS)
            for worker in workers.values():
                worker.call("fill", width=width, n=n)
                worker.call(
                    "prepare_training", name="step", width=width, keys=n
                )
            seconds = plan.turns(workers, "step")
            what = f"training step, Adam, width {width}"
            for name, value in seconds.items():
                results.figures.append((what, name, value * 1e3, "ms"))
            if "TFRA" in seconds:
                ratio = seconds["tfembed"] / seconds["TFRA"]
                cells = ((f"width {width}", ratio),)
                add_bar(results, f"{what} / TFRA", 0.2, cells, at_most=True)


def structured_keys(plan: Plan, results: Results) -> None:
    """Keys with structure beside random ones, a process each, in turns."""
    n = min(plan.keys, 2_000_000)
    with contextlib.ExitStack() as stack:
        workers = {
            kind: stack.enter_context(plan.workers("tfembed"))["tfembed"]
            for kind in workload.KINDS
        }
        for kind, worker in workers.items():
            worker.call("fill", width=8, n=n, kind=kind)
        seconds = plan.medians(workers, "find", work="find", form="eager")
    for kind, value in seconds.items():
        what = f"find, {kind} keys, width 8"
        results.add_rates(what, {"tfembed": value})
    cells = tuple(
        (kind, seconds["random"] / seconds[kind])
        for kind in workload.KINDS
        if kind != "random"
    )
    add_bar(results, "find structured keys / random ones", 0.9, cells)


def strings(plan: Plan, results: Results) -> None:
    """Strings of 16 bytes beside the int64 keys that they spell."""
    with plan.workers("tfembed", "tfembed strings") as workers:
        for worker in workers.values():
            worker.call("fill", width=8, n=plan.keys)
        for work in ("find", "upsert"):
            seconds = plan.medians(workers, work, work=work, form="eager")
            results.add_rates(f"{work}, width 8", seconds)
            if work == "find":
                ratio = seconds["tfembed"] / seconds["tfembed strings"]
                cells = ((work, ratio),)
                add_bar(results, "find 16-byte strings / int64", 0.3, cells)


def widths(plan: Plan, results: Results) -> None:
    """Time a byte of wide rows beside that of width 64, in turns."""
    with contextlib.ExitStack() as stack:
        runs = {}
        for width in (64, *_OTHER_WIDTHS):
            workers = stack.enter_context(plan.workers("tfembed"))
            n = min(plan.keys, _WIDE_BYTES // (4 * width))
            workers["tfembed"].call("fill", width=width, n=n)
            name = f"find, {n:,} keys, width {width}"
            for worker in workers.values():
                worker.call(
                    "prepare", name=name, work="find", form="eager", count=8
                )
            runs[name] = workers
        turns = contest.take_turns(runs, rounds=plan.rounds)
    for name in runs:
        results.add_rates(name, turns.of(name))
    first, *others = runs
    cells = tuple(
        (f"width {width}", turns.ratio(name, first) * 64 / width)
        for width, name in zip(_OTHER_WIDTHS, others, strict=True)
    )
    add_bar(results, "time a byte / width 64's", 1.5, cells, at_most=True)
