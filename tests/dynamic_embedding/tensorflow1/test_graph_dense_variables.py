"""Dense variables beside tables, in steps of graphs of TensorFlow 1."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import (
    graph_and_session,
    loss_of,
    sgd,
    start,
    table,
    v1,
    wrapped,
)


def test_rows_are_read_for_dense_gradients_before_they_move():
    with graph_and_session() as session:
        v, dense = table(dim=1), v1.get_variable("dense", initializer=1.0)
        late = tf.numpy_function(lambda: time.sleep(0.1), [], [])
        with tf.control_dependencies([late]):
            of_dense = tf.reduce_sum(v.lookup([1]))
        of_table = tf.IndexedSlices([[1.0]], [1])  # As of a sum: no rows in it.
        step = wrapped(sgd(1.0)).apply_gradients(
            [(of_table, v), (of_dense, dense)]
        )
        start(session)
        assert session.run([of_dense, step])[0] == 1.0
        assert session.run([v.lookup([1]), dense]) == [[[0.0]], 0.0]


@pytest.mark.parametrize("nonfinite", ["skip", "refuse"])
def test_dense_gradients_are_of_any_kind_beside_tables(nonfinite):
    with graph_and_session() as session:
        v, number = table(dim=1), v1.get_variable("number", initializer=1.0)
        dense = v1.get_variable("rows", initializer=np.ones([3, 1], "f"))
        loss = tf.reduce_sum(de.embedding_lookup(v, [1])) + tf.reduce_sum(
            tf.gather(dense, [0, 0, 2])
        )
        optimizer = wrapped(nonfinite=nonfinite)
        pairs = optimizer.compute_gradients(loss, [v, dense])
        assert isinstance(pairs[1][0], tf.IndexedSlices)
        step = optimizer.apply_gradients([*pairs, (4.0, number)])
        start(session)
        session.run(step)
        found = session.run([v.lookup([1]), number, dense])
    assert found[:2] == [[[0.5]], -1.0]
    assert found[2][:, 0].tolist() == [0.0, 1.0, 0.5]


def test_betas_that_a_graph_computes_are_those_of_each_step():
    with graph_and_session() as session:
        ids = v1.placeholder(tf.int64, [None])
        beta = v1.placeholder_with_default(0.5, [])

        def adam():
            return v1.train.AdamOptimizer(0.1, beta1=beta, beta2=beta + 0.4)

        v = table()
        dense = v1.get_variable("dense", initializer=np.ones([3, 3], "f"))
        number = v1.get_variable("number", initializer=1.0)
        own = wrapped(adam()).minimize(
            loss_of(de.embedding_lookup(v, ids)) * number
        )
        same = v1.get_variable("same", initializer=1.0)
        other = adam().minimize(
            loss_of(tf.gather(dense, ids)) * same, var_list=[dense, same]
        )
        start(session)
        for value in (0.5, 0.3, 0.4):
            session.run([own, other], {ids: [2, 1, 0, 1], beta: value})
        found = session.run([v.lookup([0, 1, 2]), number])
        expected = session.run([dense, same])
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)
