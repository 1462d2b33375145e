"""`make bench-lookup`: measures, prints, judges; exits 1 below a bar."""

from __future__ import annotations

import argparse
import sys
import tempfile

from benchmarks import lookup, parts
from benchmarks.lookup import grid, memory, newer, others
from benchmarks.lookup.plan import ROWS, Plan
from benchmarks.results import Results

PARTS = {
    "forward": grid.forward,
    "training": grid.exact,
    "row-wise": grid.row_wise,
    "one-table": others.one_table,
    "ipex": newer.ipex,
    "zentf": newer.zentf,
    "hash": others.hash_tables,
    "memory": memory.run,
    "small": others.small_steps,
    "cores": others.cores,
}


def main() -> int:
    """Runs the parts that the flags name."""
    flags = _parse_flags()
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(
            widths=[64] if flags.quick else flags.widths,
            skews=["zipf"] if flags.quick else ["zipf", "uniform"],
            rounds=3 if flags.quick else flags.rounds,
            smaller=5 if flags.quick else flags.smaller,
            folder=folder,
            with_downloads=not flags.no_downloads,
        )
        return parts.run(
            PARTS,
            flags.only or PARTS,
            plan,
            Results(),
            title=lookup.TITLE,
            columns=120,
        )


def _parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lookup", description=__doc__
    )
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--quick", action="store_true", help="a first look")
    parser.add_argument(
        "--no_downloads",
        action="store_true",
        help="no torch, IPEX, zentf, TFRA",
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--smaller", type=int, default=1, help="divides the tables' rows"
    )
    parser.add_argument(
        "--widths", nargs="+", type=int, choices=ROWS, default=list(ROWS)
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
