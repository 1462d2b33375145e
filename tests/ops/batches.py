"""Features of small batches, for the oracle and for the ops."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from oracle import Bag, Feature
from tfembed.ops import FeatureIds, FeaturePlan, table

DIMS = (3, 16)
VOCABULARY = 12


def feature(
    kind: str, ids: list[list[int]], weights=None, places=None, **options
) -> Feature:
    """A feature for the oracle: one list of ids (weights, places) a sample."""
    bags = []
    for b, of_bag in enumerate(ids):
        w = weights[b] if weights else [1.0] * len(of_bag)
        p = places[b] if places else list(range(len(of_bag)))
        bags.append(Bag(list(of_bag), list(w), list(p)))
    return Feature(bags, kind, weighted=weights is not None, **options)


def features() -> list[Feature]:
    """Every kind, combiner and both tables; repeats, empty rows, weights."""
    ids = [[1, 3, 1], [], [5], [3, 3, 3, 2]]
    weights = [[0.5, 2.0, 1.0], [], [1.5], [1.0, 1.25, 0.5, 0.75]]
    places = [[0, 2, 5], [], [4], [0, 1, 3, 4]]
    return [
        feature("dense", [[2], [1], [2], [11]], table=0),
        feature("ragged", ids, table=1, combiner="mean"),
        feature("ragged", ids, weights, table=0, combiner="sqrtn"),
        feature("sparse", ids, weights, places, table=1, combiner="sum"),
        feature("sparse", ids, weights, places, table=0, combiner="mean"),
        feature("ragged", ids, weights, table=1, max_sequence_length=2),
        feature("sparse", ids, None, places, table=0, max_sequence_length=5),
    ]


def tensors(f: Feature) -> FeatureIds:
    """The same feature as the ops take it."""
    ids = [i for bag in f.bags for i in bag.ids]
    weights = [w for bag in f.bags for w in bag.weights]
    rows = np.zeros(0)
    if f.kind == "ragged":
        rows = np.cumsum([0] + [len(bag.ids) for bag in f.bags])
    if f.kind == "sparse":
        pairs = [(b, p) for b, bag in enumerate(f.bags) for p in bag.places]
        rows = np.asarray(pairs).reshape(-1, 2)
    return FeatureIds(
        kind=f.kind,
        ids=tf.constant(ids, tf.int64),
        rows=tf.constant(rows, tf.int64),
        weights=tf.constant(weights if f.weighted else [], tf.float32),
        batch_size=tf.constant(len(f.bags), tf.int64),
    )


def plan(f: Feature) -> FeaturePlan:
    return FeaturePlan(f.table, f.combiner, f.max_sequence_length, f.validate)


def make_tables(static: bool) -> list:
    """Two tables of the same rows, as variables or as handles."""
    if static:
        return [tf.Variable(rows(t)) for t in range(len(DIMS))]
    handles = []
    for t, dim in enumerate(DIMS):
        handles.append(table.create(dim, name=f"t{t}"))
        table.upsert(handles[t], tf.range(VOCABULARY, dtype=tf.int64), rows(t))
    return handles


def rows(t: int) -> np.ndarray:
    rng = np.random.default_rng(t)
    return rng.uniform(-1, 1, [VOCABULARY, DIMS[t]]).astype(np.float32)


def read_rows(source, t: int) -> np.ndarray:
    """The rows of table t now."""
    if isinstance(source, tf.Variable):
        return source.numpy()
    return table.lookup(
        source, tf.range(VOCABULARY, dtype=tf.int64), dim=DIMS[t]
    )[0].numpy()


def gradients_of(features: list[Feature]) -> list[np.ndarray]:
    """Positive, so that sums do not cancel."""
    rng = np.random.default_rng(9)
    result = []
    for f in features:
        shape = [len(f.bags), DIMS[f.table]]
        if f.max_sequence_length:
            shape.insert(1, f.max_sequence_length)
        result.append(rng.uniform(0.2, 1, shape).astype(np.float32))
    return result
