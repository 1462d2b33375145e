"""Gradients of lookups in a branch, by a tape that is around it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import (
    graph_and_session,
    start,
    v1,
    wrapped,
)
from tfembed import errors


def variable(**options):
    options = {"key_dtype": tf.int64, "name": "v", **options}
    return de.Variable(
        dim=2, initializer=1.0, devices=["/CPU:0"] * 2, **options
    )


def sparse(v, keys):
    rows = tf.range(tf.size(keys, tf.int64))
    indices = tf.stack([rows, tf.zeros_like(rows)], 1)
    bags = tf.SparseTensor(indices, keys, [tf.size(keys, tf.int64), 1])
    return de.embedding_lookup_sparse(v, bags, None, combiner="sum")


LOOKUPS = {
    "dense": de.embedding_lookup,
    "named": lambda v, keys: de.embedding_lookup(v, keys, name="rows"),
    "sparse": sparse,
}


def slices(gradient):
    """The rows of a gradient, by key."""
    keys, rows = gradient.indices.numpy(), gradient.values.numpy()
    return {key: row.tolist() for key, row in zip(keys, rows, strict=True)}


@pytest.mark.parametrize("dtype", [tf.int64, tf.int32])
@pytest.mark.parametrize("look_up", LOOKUPS.values(), ids=LOOKUPS)
def test_a_branch_without_a_lookup_trains_nothing(look_up, dtype):
    v = variable(key_dtype=dtype)
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.SGD(1.0))
    keys = tf.constant([1, 2], dtype)

    @tf.function
    def step(looks_up):
        with tf.GradientTape() as tape:
            rows = tf.cond(
                looks_up,
                lambda: look_up(v, keys) * 3.0,
                lambda: tf.ones([2, 2]),
            )
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    step(tf.constant(False))
    assert int(v.size()) == 0
    step(tf.constant(True))
    np.testing.assert_array_equal(v.lookup(keys), [[-2.0] * 2] * 2)


@pytest.mark.parametrize("look_up", LOOKUPS.values(), ids=LOOKUPS)
def test_branches_and_what_is_outside_of_them_add_up(look_up):
    v = variable()

    def keys(*numbers):
        return tf.constant(numbers, tf.int64)

    @tf.function
    def gradient(branch):
        with tf.GradientTape() as tape:
            rows = tf.switch_case(
                branch,
                [
                    lambda: look_up(v, keys(1)) * 2.0,
                    lambda: look_up(v, keys(2)) * 3.0,
                    lambda: tf.zeros([1, 2]),
                ],
            )
            loss = tf.reduce_sum(rows) + tf.reduce_sum(look_up(v, keys(4)))
        return tape.gradient(loss, v)

    always = {4: [1.0, 1.0]}
    assert slices(gradient(tf.constant(0))) == {1: [2.0, 2.0], **always}
    assert slices(gradient(tf.constant(1))) == {2: [3.0, 3.0], **always}
    assert slices(gradient(tf.constant(2))) == always


def test_an_eager_tape_sees_the_branch_of_a_function():
    v = variable()

    @tf.function
    def rows(outer, inner):
        return tf.cond(
            outer,
            lambda: tf.cond(
                inner,
                lambda: de.embedding_lookup(v, tf.constant([1], tf.int64)),
                lambda: tf.zeros([1, 2]),
            ),
            lambda: tf.ones([1, 2]),
        )

    for flags, expected in (
        ((True, True), {1: [1.0, 1.0]}),
        ((True, False), {}),
        ((False, True), {}),
    ):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(rows(*map(tf.constant, flags)))
        assert slices(tape.gradient(loss, v)) == expected


@pytest.mark.parametrize("look_up", LOOKUPS.values(), ids=LOOKUPS)
def test_string_keys_want_the_tape_inside_of_the_branch(look_up):
    v = variable(key_dtype=tf.string)

    def rows(*keys):
        return look_up(v, tf.constant(keys))

    @tf.function
    def around(flag):
        with tf.GradientTape() as tape:
            found = tf.cond(flag, lambda: rows("a"), lambda: rows("b"))
        return tape.gradient(found, v)

    def inside():
        with tf.GradientTape() as tape:
            found = rows("a", "b")
        gradient = tape.gradient(found, v)
        return gradient.indices, gradient.values

    with pytest.raises(errors.UnsupportedError, match="inside of the branch"):
        around(tf.constant(True))
    branch = tf.function(
        lambda flag: tf.cond(
            flag, inside, lambda: (tf.constant(["c"]), tf.ones([1, 2]))
        )
    )
    keys, found = branch(tf.constant(True))
    assert sorted(keys.numpy()) == [b"a", b"b"]
    np.testing.assert_array_equal(found, np.ones([2, 2]))


@pytest.mark.parametrize("look_up", LOOKUPS.values(), ids=LOOKUPS)
def test_a_loop_that_calls_a_function_is_refused(look_up):
    v = variable()
    found = tf.function(lambda key: tf.reduce_sum(look_up(v, key[tf.newaxis])))

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            total = tf.constant(0.0)
            for key in tf.range(-3, 0, dtype=tf.int64):
                total += found(key)
        return tape.gradient(total, v)

    with pytest.raises(errors.UnsupportedError, match="inside of a loop"):
        gradient()


def test_slices_that_left_a_branch_are_not_made_dense():
    v = variable()

    @tf.function
    def gradient(flag):
        with tf.GradientTape() as tape:
            rows = tf.cond(
                flag,
                lambda: de.embedding_lookup(v, tf.constant([-1], tf.int64)),
                lambda: tf.ones([1, 2]),
            )
        return tape.gradient(rows, v)

    found = gradient(tf.constant(True))
    assert slices(found) == {-1: [1.0, 1.0]}
    with pytest.raises(errors.DtypeError, match="no dense form"):
        tf.convert_to_tensor(found)


class BranchingGraph:
    """A graph of TensorFlow 1 that looks rows up where `flag` says so."""

    def __init__(self):
        self.v = variable()
        self.flag = v1.placeholder(tf.bool, [])
        keys = tf.constant([1, 2], tf.int64)
        self.rows = tf.cond(
            self.flag,
            lambda: de.embedding_lookup(self.v, keys),
            lambda: tf.ones([2, 2]),
        )

    def minimize(self):
        return wrapped().minimize(tf.reduce_sum(self.rows))


def test_a_graph_trains_what_a_branch_looks_up():
    with graph_and_session() as session:
        graph = BranchingGraph()
        step = graph.minimize()
        size, found = graph.v.size(), graph.v.lookup([1, 2])
        start(session)
        session.run(step, {graph.flag: False})
        assert session.run(size) == 0
        session.run(step, {graph.flag: True})
        np.testing.assert_array_equal(session.run(found), [[0.5] * 2] * 2)


def test_branches_of_old_control_flow_have_no_gradient():
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default():
            graph = BranchingGraph()
            with pytest.raises(errors.UnsupportedError, match="TensorFlow 1"):
                graph.minimize()
    finally:
        v1.enable_control_flow_v2()
