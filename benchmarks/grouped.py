"""Workload A: 26 features looked up, combined and trained in one step."""

from __future__ import annotations

import gc

import numpy as np
import tensorflow as tf

from benchmarks import limit, measure, workloads
from tfembed.ops import grouped as ops

VOCABULARY = {16: 1_000_000, 64: 500_000}
LEARNING_RATE = 0.01
RULE = "adagrad initial_accumulator_value=0.1"
F, B = workloads.FEATURES, workloads.BATCH


class Contenders:
    """tfembed and stock TensorFlow over the same variables."""

    def __init__(self, width: int):
        shape = (VOCABULARY[width], width)
        self.dims = [width] * F
        self.tables = [tf.Variable(tf.fill(shape, 0.01)) for _ in range(F)]
        self.slots = [tf.Variable(tf.fill(shape, 0.1)) for _ in range(F)]
        self.plans = [ops.FeaturePlan(f, "mean", 0, False) for f in range(F)]
        self.gradients = [tf.fill((B, width), 1e-3) for _ in range(F)]
        self.ours = tf.function(self.lookup, reduce_retracing=True)
        self.ours_train = tf.function(self.train, reduce_retracing=True)
        self.stock = tf.function(self.stock_lookup, reduce_retracing=True)
        self.stock_train = tf.function(self.stock_step, reduce_retracing=True)

    def lookup(self, features):
        return ops.grouped_lookup(
            self.tables,
            self.dims,
            [ops.FeatureIds("ragged", *f) for f in features],
            self.plans,
        )

    def train(self, features):
        out = self.lookup(features)
        ops.grouped_update(
            self.tables,
            self.slots,
            self.dims,
            [ops.FeatureIds("ragged", *f) for f in features],
            self.plans,
            self.gradients,
            rules=[RULE] * F,
            learning_rates=[LEARNING_RATE] * F,
        )
        return out

    def stock_lookup(self, features):
        return [
            tf.nn.embedding_lookup_sparse(t, f, None, combiner="mean")
            for t, f in zip(self.tables, features)
        ]

    def stock_step(self, features):
        with tf.GradientTape() as tape:
            out = self.stock_lookup(features)
        slices = tape.gradient(out, self.tables, self.gradients)
        for table, slot, g in zip(self.tables, self.slots, slices):
            ids, segments = tf.unique(g.indices)
            sums = tf.math.unsorted_segment_sum(
                g.values, segments, tf.size(ids)
            )
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle,
                accum=slot.handle,
                lr=LEARNING_RATE,
                epsilon=1e-7,
                grad=sums,
                indices=ids,
            )
        return out


def our_input(batch: workloads.Batch):
    nothing = tf.zeros([0])
    size = tf.constant(B, tf.int64)
    return [
        (tf.constant(ids), tf.constant(splits), nothing, size)
        for ids, splits in map(batch.feature, range(F))
    ]


def stock_input(batch: workloads.Batch):
    return [
        tf.RaggedTensor.from_row_splits(
            *map(tf.constant, batch.feature(f))
        ).to_sparse()
        for f in range(F)
    ]


def consume(activations) -> None:
    """Waits for, and uses, every output."""
    float(tf.add_n([a[0, 0] + a[-1, -1] for a in activations]))


def run(rows: list[tuple], *, rounds: int) -> None:
    """Appends (workload, {contender: milliseconds}) rows.

    Width 64 takes 14 GB: 26 tables of 500,000 rows and their accumulators, once
    for TensorFlow and tfembed together and once for the limit.
    """
    library = limit.load()
    for width in VOCABULARY:
        _run_width(library, width, rows, rounds)
        gc.collect()  # The traced functions and their tables are a cycle.


def _run_width(library, width: int, rows: list[tuple], rounds: int) -> None:
    peers = Contenders(width)
    floor = limit.Tables(library, VOCABULARY[width], width)
    for ids in (1, 20):
        batches = _batches(VOCABULARY[width], ids)
        for train in (False, True):
            runs = _runs(peers, floor, batches, train=train)
            seconds = measure.medians(runs, rounds=rounds)
            work = "train, Adagrad" if train else "lookup"
            about = "~" if ids > 1 else ""
            rows.append(
                (
                    f"{work}, {about}{ids} id, width {width}",
                    {k: v * 1e3 for k, v in seconds.items()},
                )
            )


def _batches(vocabulary: int, ids: int) -> list[workloads.Batch]:
    rng = np.random.default_rng(3)
    return [workloads.click_batch(rng, vocabulary, ids) for _ in range(4)]


def _runs(
    peers: Contenders,
    floor: limit.Tables,
    batches: list[workloads.Batch],
    *,
    train: bool,
):
    ours = [our_input(b) for b in batches]
    stock = [stock_input(b) for b in batches]
    traced = peers.ours_train if train else peers.ours
    eager = peers.train if train else peers.lookup
    peer = peers.stock_train if train else peers.stock
    return {
        "limit": lambda i: floor.step(batches[i % 4], train=train),
        "tfembed": lambda i: consume(traced(ours[i % 4])),
        "eager": lambda i: consume(eager(ours[i % 4])),
        "TensorFlow": lambda i: consume(peer(stock[i % 4])),
    }
