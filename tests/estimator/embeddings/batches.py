"""Batches of ids, as a graph has them and as the oracle has them."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from oracle import Bag, Feature


@dataclasses.dataclass
class Batch:
    """One feature of one replica.

    Attributes:
      value: its ids.
      weights: a tensor of their kind, or None.
      feature: the same for the oracle.
    """

    value: object
    weights: object
    feature: Feature


def draw(
    rng,
    *,
    kind: str,
    combiner: str = "mean",
    num_samples: int = 4,
    vocabulary: int = 7,
    weighted: bool = False,
    max_sequence_length: int = 0,
) -> Batch:
    """Random ids, among them samples without any."""
    bags = []
    for _ in range(num_samples):
        n = 1 if kind == "dense" else rng.integers(0, 4)
        ids = rng.integers(0, vocabulary, n).tolist()
        weights = rng.uniform(0.5, 2.0, n).tolist() if weighted else [1.0] * n
        bags.append(Bag(ids, weights, list(range(n))))
    feature = Feature(
        bags,
        kind="ragged" if kind == "ragged" else "sparse",
        combiner=combiner,
        weighted=weighted,
        max_sequence_length=max_sequence_length,
    )
    value = _tensor(bags, kind, [bag.ids for bag in bags], np.int64)
    weights = None
    if weighted:
        weights = _tensor(bags, kind, [bag.weights for bag in bags], np.float32)
    return Batch(value, weights, feature)


def _tensor(bags, kind, rows, dtype):
    flat = np.array([x for row in rows for x in row], dtype)
    if kind == "dense":
        return tf.constant(flat)
    if kind == "ragged":
        return tf.RaggedTensor.from_row_lengths(flat, [len(r) for r in rows])
    indices = [(b, place) for b, bag in enumerate(bags) for place in bag.places]
    return tf.SparseTensor(
        np.array(indices, np.int64).reshape(-1, 2), flat, [len(bags), 4]
    )
