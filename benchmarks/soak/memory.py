"""`make soak-memory`: a process takes no more and more memory, whatever it does.

Repeats each of `kinds` and prints the bytes that a repetition leaves for good, of
what malloc gives out and of the process. Where TensorFlow keeps something itself,
what the same leaves with TensorFlow alone is printed beside it, and ours may be
no more. Exits 1 where more is left.

  python -m benchmarks.soak.memory                  each in its own process
  python -m benchmarks.soak.memory shadows graphs   some of them
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 10_000  # Of the cheapest kinds; of others as many as take as long.
MODULE = "benchmarks.soak.memory"


def run(kinds: list[str], steps: int) -> dict[str, dict[str, object]]:
    """Return what each of `kinds` left, measured in one new process."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(
            os.environ,
            PYTHONMALLOC="malloc",  # So that malloc knows of Python's memory.
            TF_CPP_MIN_LOG_LEVEL="3",
            TMPDIR=folder,
        )
        measuring = ["-m", MODULE, "--measure", "--steps", str(steps)]
        process = subprocess.run(
            [sys.executable, *measuring, *kinds],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found = [line for line in process.stdout.splitlines() if line[:1] == "{"]
    return {one["kind"]: one for one in map(json.loads, found)}


def measure(name: str, steps: int) -> dict[str, object]:
    """Measure what one kind leaves in this process."""
    from benchmarks.soak import growth
    from benchmarks.soak.kinds import KINDS

    kind = KINDS[name]
    repetitions = max(kind.fewest, steps // kind.cost)
    repeat = kind.make()
    stock = None
    if kind.stock is not None:
        stock = growth.measure(
            kind.stock(), repetitions, bytes_each=kind.bytes_each
        )
    ours = growth.measure(repeat, repetitions, stock, kind.bytes_each)
    is_flat = ours.is_flat(stock, kind.bytes_each)
    return {
        "kind": name,
        "repetitions": repetitions,
        "bytes": round(ours.bytes_each),
        "resident": round(ours.resident / repetitions),
        "stock": None if stock is None else round(stock.bytes_each),
        "is_flat": is_flat,
        "kept": {} if is_flat else growth.kept_objects(repeat, kind.fewest),
    }


def line(found: dict[str, object]) -> str:
    """One kind, for people."""
    stock = found["stock"]
    beside = "" if stock is None else f"   TensorFlow alone {stock:7,}"
    said = "" if found["is_flat"] else f"   NOT FLAT {found['kept']}"
    return (
        f"{found['kind']:34} {found['bytes']:8,} B of malloc, "
        f"{found['resident']:8,} B resident in each of "
        f"{found['repetitions']:6,}{beside}{said}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--measure", action="store_true", help="in here")
    flags = parser.parse_args()
    if flags.measure:
        from benchmarks.soak import kinds  # noqa: F401 - imported, then frozen

        # Collections need not look at what the imports made.
        gc.collect()
        gc.freeze()
        for kind in flags.kinds:
            print(json.dumps(measure(kind, flags.steps)), flush=True)
        return 0
    from benchmarks.soak.kinds import KINDS

    is_flat = True
    for kind in flags.kinds or KINDS:
        found = run([kind], flags.steps)[kind]
        print(line(found), flush=True)
        is_flat &= bool(found["is_flat"])
    return 0 if is_flat else 1


if __name__ == "__main__":
    sys.exit(main())
