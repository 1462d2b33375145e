"""Memory of a step: page faults, and what it takes beside tables and batch."""

from __future__ import annotations

from benchmarks.lookup.plan import COUNTS, Plan, about
from benchmarks.results import Results, add_bar

_WIDTH = 64
_ROWS = 50_000
_LARGER = 4
_FEATURES, _BATCH = 26, 4096
_ACTIVATIONS = _FEATURES * _BATCH * _WIDTH * 4
_ROUNDS = 4
# A step without faults may still see one of the interpreter's.
_FAULTS = 1.0


def run(plan: Plan, results: Results) -> None:
    """Faults with oneDNN on and off; peaks with small and large tables."""
    for opts in ("1", "0"):
        _faults(plan, results, opts)
    peaks = {}
    for rows in (_ROWS, _ROWS * _LARGER):
        for train in (False, True):
            for ids in COUNTS:
                peaks[rows, train, ids] = _peak(plan, rows, train, ids)
    _judge_peaks(results, peaks)


def _faults(plan: Plan, results: Results, opts: str) -> None:
    cells = []
    state = "on" if opts == "1" else "off"
    with plan.workers(
        _WIDTH,
        "tfembed",
        rule="adagrad",
        rows=_ROWS,
        environment={"TF_ENABLE_ONEDNN_OPTS": opts},
    ) as workers:
        worker = workers["tfembed"]
        for train in (False, True):
            for ids in COUNTS:
                for form in ("loop", "call"):
                    worker.call(
                        "prepare",
                        name="run",
                        form=form,
                        folder=plan.folder,
                        ids=ids,
                        count=4,
                        train=train,
                    )
                    worker.call("settle", name="run")
                    worker.call("faults", name="run", rounds=4 * _ROUNDS)
                    faults = worker.call(
                        "faults", name="run", rounds=4 * _ROUNDS + 1
                    )
                    worker.call("forget")
                    what = "training" if train else "forward"
                    name = f"{what}, {about(ids)}, {form}"
                    results.figures.append(
                        (
                            f"page faults, oneDNN {state}, {name}",
                            "tfembed",
                            faults,
                            "a step",
                        )
                    )
                    cells.append((name, faults / _FAULTS))
    add_bar(
        results,
        f"page faults a step, oneDNN {state}",
        1.0,
        tuple(cells),
        at_most=True,
    )


def _peak(plan: Plan, rows: int, train: bool, ids: int) -> int:
    """In a process of its own, whose buffers are all new."""
    with plan.workers(
        _WIDTH,
        "tfembed",
        rule="adagrad" if train else "",
        rows=rows,
        environment={},
    ) as workers:
        worker = workers["tfembed"]
        worker.call(
            "prepare",
            name="run",
            form="call",
            folder=plan.folder,
            ids=ids,
            skew="uniform",
            train=train,
        )
        return worker.call("peak", name="run", rounds=_ROUNDS)


def _judge_peaks(
    results: Results, peaks: dict[tuple[int, bool, int], int]
) -> None:
    beside, growth = [], []
    for (rows, train, ids), peak in peaks.items():
        name = f"{'training' if train else 'forward'}, {about(ids)}"
        what = f"memory beside {rows:,} rows, {name}"
        results.figures.append((what, "tfembed", peak / 1e6, "MB"))
        beside.append((f"{name}, {rows:,} rows", peak / _ACTIVATIONS))
        if rows == _ROWS:
            larger = peaks[rows * _LARGER, train, ids]
            growth.append((name, (larger - peak) / _ACTIVATIONS))
    add_bar(
        results,
        "peak beyond tables and batch / activations",
        3.0,
        tuple(beside),
        at_most=True,
    )
    # Twice as many distinct ids are a few MB; a copy of a table is hundreds.
    add_bar(
        results,
        f"peak with {_LARGER} x the rows, more / activations",
        0.5,
        tuple((name, max(more, 0.0)) for name, more in growth),
        at_most=True,
    )
