"""A table of four rows, its lookups by TPUEmbeddingV0, and a batch."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tfembed

THEIRS = tf.tpu.experimental.embedding
ROWS = np.array([[2.0 * i + 1, 2.0 * i + 2] for i in range(4)], np.float32)
# Sample 0 has ids 1 and 3, sample 1 none, sample 2 id 2 with weight 0.
SPARSE = tf.SparseTensor([[0, 0], [0, 2], [2, 0]], [1, 3, 2], [3, 3])
WEIGHTS = SPARSE.with_values(tf.constant([1.0, 0.5, 0.0]))
RAGGED = tf.ragged.constant([[1, 3], [], [2]])
RAGGED_WEIGHTS = tf.ragged.constant([[1.0, 0.5], [], [0.0]])
ZERO = [0.0, 0.0]


def rows(shape, dtype):
    return tf.constant(ROWS[: shape[0], : shape[1]], dtype)


def table(configs=tfembed, **arguments):
    return configs.TableConfig(4, 2, rows, name="users", **arguments)


def embedding(combiner="mean", optimizer=None, **feature):
    config = tfembed.FeatureConfig(table(combiner=combiner), **feature)
    return tfembed.TPUEmbeddingV0(config, optimizer)


def look_up(value, weights=None, **arguments):
    return embedding(**arguments)(value, weights).numpy()


def table_of(embedding):
    return next(iter(embedding.embedding_tables.values()))
