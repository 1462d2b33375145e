"""`make bench-engines`: one step by each engine; exits 1 below its bars.

Workload A with one id a feature: 26 tables, Adagrad, ids by Zipf's law. The
gradients depend on the activations, as those of a model do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import rich.console

from benchmarks import measure, report
from benchmarks.results import Results, add_bar

_FEATURES = 26
_BATCH = 4096
_WIDTH = 64
_BATCHES = 8
_MOST_TIMES_HOST = 3.0
_MOST_COMPILE_SECONDS = 60.0


def main() -> int:
    """Measures, prints and judges."""
    flags = _parse_flags()
    measure.set_threads(2)
    import tensorflow as tf

    batches = _batches(tf, flags.rows)
    contenders: dict[str, Callable[[int], object]] = {}
    results = Results()
    for name, engine, is_jit in (
        ("host", "host", False),
        ("xla", "xla", False),
        ("xla, jit", "xla", True),
    ):
        step = _step(tf, engine, flags.rows, is_jit=is_jit)
        start = time.perf_counter()
        step(batches[0])
        first = time.perf_counter() - start
        results.figures.append(("first call", name, first, "s"))
        contenders[name] = lambda i, step=step: step(batches[i % _BATCHES])
        if engine == "xla":
            add_bar(
                results,
                f"first call, {name}, of {_MOST_COMPILE_SECONDS:g} s",
                1.0,
                (("seconds", first / _MOST_COMPILE_SECONDS),),
                at_most=True,
            )
    medians = measure.medians(contenders, rounds=flags.rounds, warm=4)
    for name, seconds in medians.items():
        results.figures.append(("step", name, seconds * 1e3, "ms"))
    add_bar(
        results,
        "step, xla / host",
        _MOST_TIMES_HOST,
        tuple(
            (n, t / medians["host"]) for n, t in medians.items() if n != "host"
        ),
        at_most=True,
    )
    console = rich.console.Console(width=110)
    title = f"{_FEATURES} tables [{flags.rows:,}, {_WIDTH}], batch {_BATCH}"
    report.show_figures(console, title, results.figures)
    report.show_bars(console, results.bars)
    return 0 if all(bar.holds for bar in results.bars) else 1


def _batches(tf: Any, rows: int) -> list[list[Any]]:
    draws = np.random.default_rng(0).zipf(1.05, [_BATCHES, _FEATURES, _BATCH])
    ids = ((draws - 1) % rows).astype(np.int64)
    return [[tf.constant(feature) for feature in batch] for batch in ids]


def _step(
    tf: Any, engine: str, rows: int, *, is_jit: bool
) -> Callable[[list[Any]], object]:
    """A training step of an object of its own."""
    import tfembed

    embedding = tfembed.TPUEmbedding(
        [
            tfembed.FeatureConfig(
                tfembed.TableConfig(rows, _WIDTH, name=f"t{i}")
            )
            for i in range(_FEATURES)
        ],
        tfembed.Adagrad(0.1),
        engine=engine,
    )
    embedding.build(per_replica_batch_size=_BATCH)

    @tf.function(autograph=False, jit_compile=is_jit)
    def step(features: list[Any]) -> Any:
        embedding.enqueue(features)
        activations = embedding.dequeue()
        embedding.apply_gradients([0.01 * each for each in activations])
        return tf.add_n([tf.reduce_sum(each) for each in activations])

    return lambda features: step(features).numpy()


def _parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines", description=__doc__
    )
    parser.add_argument("--rows", type=int, default=100_000, help="of a table")
    parser.add_argument("--rounds", type=int, default=25)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
