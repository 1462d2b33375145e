"""`make bench-table`: measures, prints, judges; exits 1 below a bar."""

from __future__ import annotations

import argparse
import sys
import tempfile

from benchmarks import parts
from benchmarks.table import (
    access,
    files,
    growth,
    readers,
    scaling,
    threads,
)
from benchmarks.table.cases import Plan, Results

PARTS = {
    "growth": growth.run,
    "access": access.run,
    "files": files.run,
    "training": scaling.training,
    "threads": threads.run,
    "readers": readers.run,
    "keys": scaling.structured_keys,
    "strings": scaling.strings,
    "widths": scaling.widths,
}


def main() -> int:
    """Runs the parts that the flags name."""
    flags = _parse_flags()
    title = f"hash tables of {flags.keys:,} keys, batches of 65,536, 2 threads"
    with tempfile.TemporaryDirectory(dir=flags.folder) as folder:
        plan = Plan(
            keys=flags.keys,
            rounds=flags.rounds,
            builds=flags.builds,
            folder=folder,
            with_tfra=not flags.no_tfra,
            before=flags.before,
        )
        return parts.run(
            PARTS,
            flags.only or PARTS,
            plan,
            Results(),
            title=title,
            columns=110,
        )


def _parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.table", description=__doc__
    )
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--builds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--no_tfra", action="store_true")
    parser.add_argument(
        "--before",
        help="another checkout of tfembed, built, for the part `readers`",
    )
    parser.add_argument("--folder", help="where checkpoints are written")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
