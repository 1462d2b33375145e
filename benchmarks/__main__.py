"""`make bench`: tfembed beside stock TensorFlow and the physical limit."""

from __future__ import annotations

import argparse
import tempfile

import rich.console

from benchmarks import lookup, report
from benchmarks.lookup import grid
from benchmarks.lookup.plan import Plan
from benchmarks.results import Results
from benchmarks.table import cases, stock


def main() -> None:
    """Measures what needs no download; judges nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=4_000_000, help="a table")
    parser.add_argument("--rounds", type=int, default=9, help="of each run")
    parser.add_argument("--only", choices=["grouped", "tables"])
    flags = parser.parse_args()
    console = rich.console.Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        if flags.only != "tables":
            _show_lookups(console, flags, folder)
        if flags.only != "grouped":
            _show_tables(console, flags, folder)


def _show_lookups(console, flags: argparse.Namespace, folder: str) -> None:
    plan = Plan(
        widths=[16, 64],
        skews=["zipf"],
        rounds=flags.rounds,
        smaller=1,
        folder=folder,
        with_downloads=False,
    )
    results = Results()
    grid.forward(plan, results)
    grid.exact(plan, results)
    report.show_figures(console, lookup.TITLE, results.figures)


def _show_tables(console, flags: argparse.Namespace, folder: str) -> None:
    plan = cases.Plan(
        keys=flags.keys,
        rounds=flags.rounds,
        builds=1,
        folder=folder,
        with_tfra=False,
    )
    results = cases.Results()
    stock.run(plan, results)
    report.show_figures(
        console,
        f"hash tables of {flags.keys:,} keys beside TensorFlow's Dense- and "
        "MutableHashTable, batches of 65,536, eager",
        results.figures,
    )


if __name__ == "__main__":
    main()
