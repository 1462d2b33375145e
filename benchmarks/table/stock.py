"""tfembed beside TensorFlow's own tables, for `make bench`."""

from __future__ import annotations

from benchmarks.table.cases import WIDTHS, Plan, Results

CONTENDERS = ("tfembed", "Dense", "Mutable", "limit")


def run(plan: Plan, results: Results) -> None:
    """Inserts, finds and upserts, each contender in its own process."""
    for width in WIDTHS:
        with plan.workers(*CONTENDERS) as workers:
            memory = []
            for name, worker in workers.items():
                filled = worker.call("fill", width=width, n=plan.keys)
                rate = plan.keys / filled["seconds"] / 1e6
                what = f"insert, width {width}"
                results.figures.append((what, name, rate, "M keys/s"))
                if "bytes_per_key" in filled:
                    used = filled["bytes_per_key"]
                    memory.append((name, used))
            for work in ("find", "upsert"):
                seconds = plan.medians(workers, work, work=work, form="eager")
                results.add_rates(f"{work}, width {width}", seconds)
            for name, used in memory:
                what = f"memory, width {width}"
                results.figures.append((what, name, used, "bytes a key"))
