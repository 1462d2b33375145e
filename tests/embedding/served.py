"""Configs of two tables, what trained and serves them, and what they hold."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tfembed

THEIRS = tf.tpu.experimental.embedding
SHAPES = {"video": (8, 4), "user": (16, 2)}
SLOTS = {
    "SGD": (),
    "Adagrad": ("accumulators",),
    "AdagradMomentum": ("accumulators", "momenta"),
    "FTRL": ("accumulators", "linears"),
    "Adam": ("momenta", "velocities"),
}
INPUTS = {
    "watched": tf.ragged.constant([[1, 3], [], [2]], dtype=tf.int64),
    "video": tf.SparseTensor(
        [[0, 0], [2, 1]], tf.constant([7, 1], tf.int64), [3, 2]
    ),
    "user": tf.constant([[4], [5], [4]]),
}


def config(configs, *, named=True):
    tables = {
        name: configs.TableConfig(*shape, name=name if named else None)
        for name, shape in SHAPES.items()
    }
    return {
        "watched": configs.FeatureConfig(tables["video"], 2),
        "video": configs.FeatureConfig(tables["video"]),
        "user": configs.FeatureConfig(tables["user"]),
    }


def serving(optimizer=None, configs=tfembed, **arguments):
    return tfembed.TPUEmbeddingForServing(
        config(configs, **arguments), optimizer
    )


def trained(rule="Adagrad"):
    embedding = tfembed.TPUEmbedding(
        config(tfembed), getattr(tfembed, rule)(0.5)
    )
    embedding.enqueue(INPUTS)
    activations = embedding.dequeue()
    embedding.apply_gradients(tf.nest.map_structure(tf.ones_like, activations))
    return embedding


def contents(embedding):
    return {
        f"{table}/{name}": variable.numpy()
        for table, variables in embedding._variables.items()
        for name, variable in variables.items()
    }


def assert_same_contents(one, other):
    one, other = contents(one), contents(other)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], name)
