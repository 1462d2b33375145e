"""Programs of TensorFlow 1 that train a table: a graph, a loss, sessions."""

from __future__ import annotations

import contextlib

import numpy as np
import tensorflow as tf

import tfembed.dynamic_embedding as de

v1 = tf.compat.v1

SCALE = np.array([1.0, -2.0, 0.5], np.float32)


@contextlib.contextmanager
def graph_and_session(target=""):
    with tf.Graph().as_default(), v1.Session(target) as session:
        yield session


def table(name="table", dim=3, shards=2, **options):
    return de.Variable(
        dim=dim,
        name=name,
        devices=["/CPU:0"] * shards,
        initializer=1.0,
        **options,
    )


def variable(shards=1, name="table", dim=1, **options):
    """A narrow table whose missing rows read as -1."""
    return de.Variable(
        dim=dim,
        devices=["/CPU:0"] * shards,
        name=name,
        initializer=-1.0,
        **options,
    )


def loss_of(rows):
    """A loss whose gradient depends on the rows, their columns and repeats."""
    return tf.reduce_sum((rows - 0.5) ** 2 * SCALE)


def start(session):
    session.run(v1.global_variables_initializer())


def train(session, step, ids, batches):
    for batch in batches:
        session.run(step, {ids: batch})


class PolicyProgram:
    """A table, with policies or without, that a graph trains.

    Args:
      session: what its variables are initialized in.
      optimizer: of `tf.compat.v1`; None: SGD.
      keys: their dtype.
      options: of the table.
    """

    def __init__(self, session, optimizer=None, keys=tf.int64, **options):
        self.ids = v1.placeholder(keys, [None])
        self.v = table(key_dtype=keys, **options)
        rows = de.embedding_lookup(self.v, self.ids)
        self.step = wrapped(optimizer).minimize(loss_of(rows))
        if self.v.table.eviction is not None:
            self.worth = self.v.table.worth()
        start(session)

    def train(self, session, *batches):
        train(session, self.step, self.ids, batches)

    def worths(self, session):
        return dict(zip(*session.run(self.worth), strict=True))


def sgd(rate=0.5):
    return v1.train.GradientDescentOptimizer(rate)


def wrapped(optimizer=None, **options):
    return de.DynamicEmbeddingOptimizer(optimizer or sgd(), **options)
