"""1, 2 and 4 replicas give the same tables after 100 steps."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed

STEPS, GLOBAL_BATCH, IDS = 100, 8, 20
RULES = {
    "sgd": lambda: tfembed.SGD(0.05),
    "adagrad": lambda: tfembed.Adagrad(0.1),
    "adam": lambda: tfembed.Adam(0.01),
}


def _rows(shape, dtype):
    return tf.random.stateless_uniform(shape, [3, 5], -1.0, 1.0, dtype)


def _embedding(strategy, rule, vocabulary):
    arguments = {"seed": 7} if vocabulary is None else {"initializer": _rows}
    table = tfembed.TableConfig(
        vocabulary, 4, combiner="sum", name="items", **arguments
    )
    features = {
        "bag": tfembed.FeatureConfig(table),
        "one": tfembed.FeatureConfig(table),
    }
    with strategy.scope():
        return table, tfembed.TPUEmbedding(features, RULES[rule]())


def _run(replicas, rule, vocabulary, *, watch=False):
    """The rows at the end, and what was added to and taken from each element."""
    strategy = tf.distribute.MirroredStrategy(
        [f"/CPU:{i}" for i in range(replicas)]
    )
    table, embedding = _embedding(strategy, rule, vocabulary)
    rng = np.random.default_rng(2)
    shape = [STEPS, replicas, GLOBAL_BATCH // replicas]
    bags = tf.constant(rng.integers(0, IDS, [STEPS, GLOBAL_BATCH, 3]))
    bags = tf.reshape(bags, [*shape, 3])
    ones = tf.reshape(tf.constant(rng.integers(0, IDS, shape)), shape)
    targets = {
        name: tf.reshape(
            tf.random.stateless_uniform([STEPS, GLOBAL_BATCH, 4], [i, 1]),
            [*shape, 4],
        )
        for i, name in enumerate(("bag", "one"))
    }

    def train(i):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        embedding.enqueue(
            {
                "bag": tf.sparse.from_dense(bags[i, replica] + 1),
                "one": ones[i, replica],
            }
        )
        activations = embedding.dequeue()
        embedding.apply_gradients(
            {
                name: activations[name] - targets[name][i, replica]
                for name in targets
            }
        )

    @tf.function
    def loop(start, end):
        for i in tf.range(start, end):
            strategy.run(train, args=(i,))

    def read():
        variable = embedding.embedding_tables[table]
        ids = tf.range(IDS + 1, dtype=tf.int64)
        if vocabulary is None:
            return variable.lookup(ids)[0].numpy()
        return variable.numpy()

    if not watch:
        loop(tf.constant(0), tf.constant(STEPS))
        return read(), None
    embedding.build(GLOBAL_BATCH // replicas)
    rows = read()
    terms = np.abs(rows)
    for i in range(STEPS):
        loop(tf.constant(i), tf.constant(i + 1))
        terms += np.abs(read() - rows)
        rows = read()
    return rows, terms


@pytest.mark.parametrize("vocabulary", [IDS + 1, None])
@pytest.mark.parametrize("rule", RULES)
def test_the_replica_count_does_not_change_the_tables(rule, vocabulary):
    expected, terms = _run(1, rule, vocabulary, watch=True)
    for replicas in (2, 4):
        actual, _ = _run(replicas, rule, vocabulary)
        error = np.abs(actual - expected)
        assert (error <= 1e-5 * terms + 1e-7).all(), error.max()
