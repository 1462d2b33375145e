"""`make bench`: tfembed beside stock TensorFlow and the physical limit."""

from __future__ import annotations

import argparse
import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import rich.console
import rich.table
import tensorflow as tf

from benchmarks import grouped, report
from benchmarks.table import cases, stock

# tfembed in a tf.function call per step (workload A) or eager (B), and eager.
OURS = ("tfembed", "eager")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--keys", type=int, default=4_000_000, help="keys per hash table"
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="measured rounds per cell"
    )
    parser.add_argument(
        "--only", choices=["grouped", "tables"], help="one workload"
    )
    flags = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    console = rich.console.Console(width=110)
    tf.get_logger().setLevel("ERROR")
    if flags.only != "tables":
        rows: list[tuple] = []
        grouped.run(rows, rounds=flags.rounds)
        show(
            console,
            "26 features of 4,096 bags, Zipf(1.05), mean combiner, one "
            "tf.function call a step: ms",
            rows,
            less_is_better=True,
        )
    if flags.only != "grouped":
        results = cases.Results()
        with tempfile.TemporaryDirectory() as folder:
            stock.run(_plan(flags, folder), results)
        report.show_figures(
            console,
            f"hash tables of {flags.keys:,} keys beside TensorFlow's Dense- and "
            "MutableHashTable, batches of 65,536, eager; the limit is presized",
            results.figures,
        )


def _plan(flags: argparse.Namespace, folder: str) -> cases.Plan:
    return cases.Plan(
        keys=flags.keys,
        rounds=flags.rounds,
        builds=1,
        folder=folder,
        with_tfra=False,
    )


def show(console, title: str, rows, *, less_is_better: bool) -> None:
    """Prints one table; ratios above 1 mean that tfembed is ahead."""
    names = list(dict.fromkeys(n for _, cells in rows for n in cells))
    peers = [n for n in names if n not in OURS]
    table = rich.table.Table(title=f"{title} (medians, interleaved)")
    table.add_column("work")
    for name in names:
        table.add_column(name, justify="right")
    for name in peers:
        table.add_column(f"vs {name}", justify="right")
    for work, cells in rows:
        figures = [f"{cells[n]:.2f}" if n in cells else "" for n in names]
        for name in peers:
            if name not in cells:
                figures.append("")
                continue
            ratio = cells["tfembed"] / cells[name]
            figures.append(f"{1 / ratio if less_is_better else ratio:.2f}x")
        table.add_row(work, *figures)
    console.print(table)


if __name__ == "__main__":
    main()
