"""One big table, hash tables, small steps, and what a core reaches."""

from __future__ import annotations

from benchmarks.lookup.plan import (
    COUNTS,
    Plan,
    about,
    add_times,
    label,
    ratios,
)
from benchmarks.results import Results, add_bar

_ONE_TABLE = 4_000_000
_SMALL = 32
# Few, since TensorFlow copies its tables in a loop.
_SMALL_ROWS = 2_000
# TFRA takes three times the memory of its rows: it gets fewer of them.
_TFRA_SMALLER = {16: 2, 64: 2, 128: 4}
_KINDS = (("forward", ""), ("training", "adagrad"))


def one_table(plan: Plan, results: Results) -> None:
    """All features in one table beside one table each."""
    cells = []
    rows = _ONE_TABLE // plan.smaller
    for width in plan.widths:
        with (
            plan.workers(width, "tfembed", rule="adagrad") as many,
            plan.workers(
                width, "tfembed", rule="adagrad", rows=rows, shared=True
            ) as one,
        ):
            workers = {"tfembed": one["tfembed"], "26 tables": many["tfembed"]}
            for work in plan.works(train=True):
                seconds = plan.compare(workers, "loop", **work)
                name = label(width, work)
                add_times(results, f"training, one table, {name}", seconds)
                cells.append((name, seconds))
    add_bar(
        results,
        "training, one table / 26 tables",
        1.5,
        ratios(cells, "26 tables"),
        at_most=True,
    )


def hash_tables(plan: Plan, results: Results) -> None:
    """Tables that take any id beside ours with a vocabulary, and TFRA's."""
    for what, rule in _KINDS:
        static, tfra = [], []
        for width in plan.widths:
            names = ("tfembed hash", "tfembed")
            with plan.workers(width, *names, rule=rule) as workers:
                static += _hash_cells(plan, results, workers, width, what)
        for width in plan.widths:
            rows = plan.rows(width)
            fewer = rows // _TFRA_SMALLER[width]
            with (
                plan.workers(width, "tfembed hash", rule=rule) as ours,
                plan.workers(width, "TFRA", rule=rule, rows=fewer) as peer,
            ):
                workers = {**ours, **peer}
                tfra += _hash_cells(plan, results, workers, width, what)
        for cells, peer, bar in ((static, "tfembed", 1.6), (tfra, "TFRA", 0.3)):
            add_bar(
                results,
                f"{what}, hash tables / {peer}",
                bar,
                ratios(cells, peer, "tfembed hash"),
                at_most=True,
            )


def _hash_cells(plan, results, workers, width, what):
    cells = []
    form = "call" if "TFRA" in workers else "loop"
    for work in plan.works(train=what == "training"):
        seconds = plan.compare(workers, form, **work)
        name = label(width, work)
        add_times(results, f"{what}, hash tables, {name}", seconds)
        cells.append((name, seconds))
    return cells


def small_steps(plan: Plan, results: Results) -> None:
    """Batches of 32: what a step costs beside its rows."""
    cells = []
    width = 16 if 16 in plan.widths else plan.widths[0]
    names = ("tfembed", "tfembed ops", "TensorFlow")
    rows = _SMALL_ROWS
    with plan.workers(width, *names, rule="adagrad", rows=rows) as workers:
        for ids in COUNTS:
            for form in ("loop", "call sparse", "call ragged"):
                seconds = plan.compare(
                    workers, form, ids=ids, train=True, batch=_SMALL, count=16
                )
                name = f"{about(ids)}, {form}"
                add_times(results, f"training, batch 32, {name}", seconds)
                # A call of 26 composite tensors costs both the same.
                if form == "loop":
                    cells.append((name, seconds))
    add_bar(
        results,
        "training, batch 32, loop / TensorFlow",
        0.4,
        ratios(cells, "TensorFlow"),
        at_most=True,
    )


def cores(plan: Plan, results: Results) -> None:
    """One thread beside FBGEMM, which has one core; two beside one."""
    width = 64 if 64 in plan.widths else plan.widths[0]
    one_core, threads = [], []
    with plan.workers(width, "tfembed", threads=1, rule="adagrad") as one:
        with plan.workers(width, "tfembed", rule="adagrad") as two:
            workers = {"1 thread": one["tfembed"], "2 threads": two["tfembed"]}
            for train in (False, True):
                for skew in plan.skews:
                    work = {"ids": 20, "skew": skew, "train": train}
                    what = "training" if train else "forward"
                    name = f"{what}, {label(width, work)}"
                    seconds = plan.compare(workers, "loop", **work)
                    add_times(results, f"threads: {name}", seconds)
                    threads.append((name, seconds))
        for peer, rule in (
            ("FBGEMM row-wise", "row-wise"),
            ("FBGEMM", "adagrad"),
        ):
            with plan.workers(width, peer, threads=1, rule=rule) as other:
                workers = {**one, **other}
                for work in plan.works(train=True):
                    seconds = plan.compare(workers, "loop", **work)
                    name = label(width, work)
                    add_times(results, f"one core: training, {name}", seconds)
                    one_core.append((name, seconds))
    for peer, bar in (("FBGEMM row-wise", 1.3), ("FBGEMM", 0.4)):
        add_bar(
            results,
            f"training, one core / {peer}",
            bar,
            ratios(one_core, peer),
            at_most=True,
        )
    add_bar(
        results,
        "2 threads over 1, ~20 ids",
        1.6,
        ratios(threads, "2 threads", "1 thread"),
    )
