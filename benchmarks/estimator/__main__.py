"""`make bench-estimator`: a step of 26 embedding columns; exits 1 below a bar."""

from __future__ import annotations

import argparse
import sys

from benchmarks import environments, measure
from benchmarks.bars import Bar
from benchmarks.process import Worker

OLD, TUNED = "TensorFlow 2.15", "TensorFlow 2.15, tuned"
# What a step may take of the old one's time, as that comes. What users get who
# know which of TensorFlow's rewrites to switch off is shown, and not judged.
BARS = {("tfembed", OLD): 0.5, ("tfembed, columns", OLD): 1.1}


def main() -> int:
    """Measures, prints and judges."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.estimator", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200, help="of a round")
    parser.add_argument("--threads", type=int, default=2)
    flags = parser.parse_args()
    seconds = _measure(flags)
    print(f"{'':<24}{'ms a step':>10}{'ratio':>8}{'tuned':>8}")
    for name, taken in seconds.items():
        ratio = taken / seconds[OLD]
        tuned = taken / seconds[TUNED]
        print(f"{name:<24}{1000 * taken:>10.2f}{ratio:>8.2f}{tuned:>8.2f}")
    judged = [
        Bar(
            f"{name} beside {other}",
            bar,
            (("step", seconds[name] / seconds[other]),),
            at_most=True,
        )
        for (name, other), bar in BARS.items()
    ]
    for bar in judged:
        verdict = "holds" if bar.holds else "MISSED"
        print(f"{bar.name}: {bar.mean:.2f} of at most {bar.bar}: {verdict}")
    return 0 if all(bar.holds for bar in judged) else 1


def _measure(flags: argparse.Namespace) -> dict[str, float]:
    pythons = dict.fromkeys((OLD, TUNED), environments.ESTIMATOR.python)
    pythons |= dict.fromkeys((name for name, _ in BARS), sys.executable)
    times: dict[str, list[float]] = {name: [] for name in pythons}
    workers = {
        name: Worker(
            "benchmarks.estimator.session",
            name,
            python=python,
            threads=flags.threads,
        )
        for name, python in pythons.items()
    }
    try:
        for i in range(flags.rounds):
            order = list(workers)[:: -1 if i % 2 else 1]
            for name in order:
                taken = workers[name].call("run", steps=flags.steps)
                times[name].append(taken)
                print(f"round {i}: {name}: {1000 * taken:.2f} ms", flush=True)
    finally:
        for worker in workers.values():
            worker.close()
    return measure.steadied(times)


if __name__ == "__main__":
    sys.exit(main())
