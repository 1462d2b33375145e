"""Embeddings whose rows count how often they were trained."""

from __future__ import annotations

import tensorflow as tf

import tfembed


def zeros(shape, dtype):
    return tf.zeros(shape, dtype)


def table(name="users", configs=tfembed, **arguments):
    return configs.TableConfig(4, 2, zeros, name=name, **arguments)


def embedding(strategy=None, **arguments):
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        return tfembed.TPUEmbedding(
            {"clicks": tfembed.FeatureConfig(table(combiner="sum"))},
            tfembed.SGD(1.0),
            **arguments,
        )


def mirrored(replicas=2):
    return tf.distribute.MirroredStrategy(
        [f"/CPU:{i}" for i in range(replicas)]
    )


def moved(embedding):
    """How often each row was counted down."""
    (table,) = embedding.embedding_tables.values()
    return (-table.numpy()[:, 0]).tolist()


def count(embedding, name=None):
    activations = embedding.dequeue(name)
    embedding.apply_gradients(
        tf.nest.map_structure(tf.ones_like, activations), name
    )
    return activations


def train(embedding, features, weights=None):
    embedding.enqueue(features, weights)
    return count(embedding)
