"""Variables whose initial rows a function draws by a seed a key."""

from __future__ import annotations

import tensorflow as tf

import tfembed.dynamic_embedding as de

DIM = 3


def gamma(shape, dtype=tf.float32, seed=None):
    return tf.random.stateless_gamma(shape, seed, alpha=2.0, dtype=dtype)


def variable(initializer=gamma, name="drawn", shards=1, **options):
    return de.Variable(
        dim=DIM,
        initializer=initializer,
        name=name,
        devices=["/CPU:0"] * shards,
        **options,
    )


def row_of(table_seed, key):
    return gamma((1, DIM), seed=[table_seed, key])[0].numpy()
