"""A table, its lookups by an engine of TPUEmbeddingV0, a batch of each kind."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tfembed

ROWS = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
# Sample 0 has ids 1, 3 and 8, sample 1 none, sample 2 twice id 3.
SPLITS = [0, 3, 3, 5]
PLACES = [[0, 0], [0, 2], [0, 3], [2, 0], [2, 1]]
IDS, WEIGHTS = [1, 3, 8, 3, 3], [1.0, 0.5, -2.0, 0.25, 0.0]


def embedding(engine, combiner="mean", feature=None, optimizer=None):
    users = tfembed.TableConfig(
        9, 3, tf.constant_initializer(ROWS), combiner=combiner, name="users"
    )
    config = {"clicks": tfembed.FeatureConfig(users, **(feature or {}))}
    return tfembed.TPUEmbeddingV0(config, optimizer, engine=engine)


def table(embedding):
    (only,) = embedding.trainable_variables
    return only


def ragged(ids, weights, padding):
    def make(values):
        # Ids behind the last split are of no sample.
        return tf.RaggedTensor.from_row_splits(
            tf.concat([values, values[:padding]], 0), SPLITS, validate=False
        )

    return make(ids), make(weights)


def sparse(ids, weights, padding, shape=(3, 4)):
    def make(values, fill):
        places = tf.reshape(
            tf.constant(PLACES + [[2, 3]] * padding, tf.int64), [-1, 2]
        )
        if len(shape) == 3:
            places = tf.pad(places, [[0, 0], [1, 0]])
        return tf.SparseTensor(
            places, tf.concat([values, tf.fill([padding], fill)], 0), shape
        )

    return make(ids, tf.constant(-1, ids.dtype)), make(weights, 1.0)


def dense(ids, weights, padding):
    del weights, padding
    return tf.reshape(ids[:4], [2, 2]), None


def rows(shape, dtype):
    return tf.constant(ROWS[: shape[0], : shape[1]], dtype)
