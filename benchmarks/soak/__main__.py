"""`make soak`: a bounded table under churn takes no more and more memory.

Inserts new keys into a table that is full, so that each evicts another one, and
compares the process's memory in the first and the last tenth of the run, after
the table was filled. A hundred million inserts at a bound of a million are about
a day of a model that meets a thousand new keys a second. Exits 1 where memory
grew, or shrank, by more than `--tolerance`, or the bound did not hold.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import optimizers, policies


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inserts", type=int, default=100_000_000)
    parser.add_argument("--max-size", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--tolerance", type=float, default=0.02)
    flags = parser.parse_args()
    tenths, evicted, seconds = churn(flags)
    first, last = statistics.fmean(tenths[0]), statistics.fmean(tenths[-1])
    change = last / first - 1
    print(
        f"{flags.inserts:,} inserts at a bound of {flags.max_size:,} in "
        f"{seconds:.0f} s: {evicted:,} evicted; memory "
        f"{first / 2**20:.1f} MB in the first tenth, {last / 2**20:.1f} MB in "
        f"the last, {change:+.2%} (allowed: {flags.tolerance:.0%})"
    )
    return 0 if abs(change) <= flags.tolerance else 1


def churn(
    flags: argparse.Namespace,
) -> tuple[list[list[int]], int, float]:
    """Memory by tenths of the run, how many keys went, and the time."""
    variable = de.Variable(
        dim=flags.dim,
        name="soak",
        eviction=policies.LeastRecent(),
        max_size=flags.max_size,
    )
    optimizer = de.DynamicEmbeddingOptimizer(optimizers.Adagrad(0.1))
    random = np.random.default_rng(1)

    @tf.function
    def train(keys: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            rows = de.embedding_lookup(variable, keys, name="rows")
            loss = tf.reduce_sum(rows * rows)
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    @tf.function
    def upsert(keys: tf.Tensor) -> None:
        variable.upsert(keys, tf.ones([flags.batch, flags.dim]))

    batches = -(-flags.inserts // flags.batch)
    filled = -(-flags.max_size // flags.batch)
    tenths: list[list[int]] = [[] for _ in range(10)]
    start = time.monotonic()
    for batch in range(filled + batches):
        # Random keys: a new one each time, but for a few in 2^64.
        keys = tf.constant(
            random.integers(-(2**63), 2**63 - 1, flags.batch, np.int64)
        )
        (train if batch % 2 else upsert)(keys)
        if batch < filled:
            continue
        done = batch - filled
        tenths[10 * done // batches].append(resident_bytes())
        if (done + 1) % max(1, batches // 10) == 0:
            report(variable, flags, (done + 1) / batches, start)
    return tenths, int(variable.table.stats().evicted), time.monotonic() - start


def report(
    variable: de.Variable,
    flags: argparse.Namespace,
    share: float,
    start: float,
) -> None:
    """Prints a line; exits where the bound does not hold."""
    size = int(variable.size())
    print(
        f"{share:4.0%}  {time.monotonic() - start:6.0f} s  {size:,} keys  "
        f"{resident_bytes() / 2**20:8.1f} MB",
        flush=True,
    )
    if size > flags.max_size:
        sys.exit(f"The table has {size} keys; the bound is {flags.max_size}.")


def resident_bytes() -> int:
    """Return the bytes of the process that lie in memory."""
    pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
