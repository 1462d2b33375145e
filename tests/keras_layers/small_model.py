"""A model over one layer of three features, its data, and its tables' rows."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tfembed
from tfembed.keras.layers import DistributedEmbedding


def configs(vocabulary=16, optimizer=None):
    arguments = {"seed": 3} if vocabulary is None else {}
    items = tfembed.TableConfig(
        vocabulary, 4, combiner="sum", name="items", **arguments
    )
    users = tfembed.TableConfig(
        vocabulary, 2, optimizer=optimizer, name="users", **arguments
    )
    return {
        "user": tfembed.FeatureConfig(users),
        "bag": tfembed.FeatureConfig(items),
        "last": tfembed.FeatureConfig(items, max_sequence_length=3),
    }


def layer(vocabulary=16, **arguments):
    return DistributedEmbedding(
        configs(vocabulary), tfembed.Adagrad(0.1), **arguments
    )


def batch(n=4):
    rng = np.random.default_rng(n)
    bags = tf.ragged.constant(
        [rng.integers(0, 16, k).tolist() for k in rng.integers(0, 5, n)],
        dtype=tf.int64,
        ragged_rank=1,
    )
    return {
        "user": tf.constant(rng.integers(0, 16, n)),
        "bag": bags.to_sparse(),
        "last": bags,
    }


def model(one):
    inputs = {
        "user": keras.Input((), dtype="int64", name="user"),
        "bag": keras.Input((3,), dtype="int64", name="bag"),
        "last": keras.Input((3,), dtype="int64", name="last"),
    }
    activations = one(inputs)
    assert activations["user"].shape == (None, 2)
    assert activations["bag"].shape == (None, 4)
    assert activations["last"].shape == (None, 3, 4)
    x = keras.layers.Concatenate()(
        [
            activations["user"],
            activations["bag"],
            keras.layers.Flatten()(activations["last"]),
        ]
    )
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def data(n=96):
    rng = np.random.default_rng(0)
    inputs = {
        "user": rng.integers(0, 16, n),
        "bag": rng.integers(0, 16, [n, 3]),
        "last": rng.integers(0, 16, [n, 3]),
    }
    # The label is one number per user.
    return inputs, (inputs["user"] % 5).astype(np.float32)[:, None]


def rows(one):
    """The numbers of each table, by name; of hash tables those of all ids."""
    return {
        name: table.lookup(tf.range(16, dtype=tf.int64))[0].numpy()
        if isinstance(table, tfembed.HashTable)
        else table.numpy()
        for name, table in one.get_embedding_tables().items()
    }


def apply(tape, loss, layer):
    """Trains the tables of a layer by a loss; returns the gradients."""
    variables = layer.trainable_variables
    gradients = tape.gradient(loss, variables)
    keras.optimizers.SGD(0.0).apply(gradients, variables)
    return gradients
