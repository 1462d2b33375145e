"""How gradients reach variables and tables, in eager mode and in functions."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from oracle import assert_close, summed_gradients
from tests.ops import batches
from tfembed.ops import (
    FeaturePlan,
    feature_ids,
    grouped_lookup,
    grouped_lookup_gradient,
    table,
    trainable_rows,
)

MODES = pytest.mark.parametrize("run", [lambda f: f, tf.function])
STATIC = pytest.mark.parametrize("static", [True, False])


class Anchor:
    """The least that acts as a variable: what `trainable_rows` asks for."""

    _should_act_as_resource_variable = True

    def __init__(self, dim=2, trainable=True):
        self.dim = dim
        self.trainable = trainable
        self.handle = table.create(dim)
        table.upsert(self.handle, [1, 2, 3], tf.ones([3, dim]))

    def lookup(self, keys):
        keys = tf.cast(keys, tf.int64)
        values, _ = table.lookup(self.handle, keys, dim=self.dim)
        return trainable_rows(self, keys, values)


def sums_of(slices):
    """{id: summed gradient} of IndexedSlices."""
    total = {}
    for i, row in zip(
        slices.indices.numpy(), slices.values.numpy(), strict=True
    ):
        total[int(i)] = total.get(int(i), 0) + row
    return total


def grouped(tables, features):
    return grouped_lookup(
        tables,
        batches.DIMS,
        [batches.tensors(f) for f in features],
        [batches.plan(f) for f in features],
    )


@MODES
def test_tables_that_act_as_variables_are_watched_by_themselves(run):
    features = batches.features()
    upstream = batches.gradients_of(features)
    tables = [tf.Variable(batches.rows(0)), Anchor(batches.DIMS[1])]

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.add_n(
                [
                    tf.reduce_sum(a * g)
                    for a, g in zip(
                        grouped(tables, features), upstream, strict=True
                    )
                ]
            )
        return tape.gradient(loss, tables)

    for t, slices in enumerate(run(gradients)()):
        mine = [f for f in features if f.table == t]
        expected = summed_gradients(
            mine,
            [
                g
                for f, g in zip(features, upstream, strict=True)
                if f.table == t
            ],
            fixed_vocabulary=t == 0,
        )
        found = sums_of(slices)
        assert found.keys() == expected.keys()
        for i, terms in expected.items():
            assert_close(found[i], terms, f"gradient of id {i}")


@STATIC
def test_the_gradient_op_gives_distinct_ids_in_order(static):
    features = batches.features()
    result = grouped_lookup_gradient(
        batches.make_tables(static),
        batches.DIMS,
        [batches.tensors(f) for f in features],
        [batches.plan(f) for f in features],
        batches.gradients_of(features),
    )
    for t, (ids, sums) in enumerate(result):
        assert ids.numpy().tolist() == sorted(set(ids.numpy().tolist()))
        assert sums.shape == [len(ids), batches.DIMS[t]]


def test_the_gradient_op_refuses_gradients_of_another_shape():
    with pytest.raises(tf.errors.InvalidArgumentError, match="feature 'f'"):
        grouped_lookup_gradient(
            [tf.Variable(tf.zeros([3, 2]))],
            [2],
            [feature_ids(tf.constant([1]))],
            [FeaturePlan(0, "sum", name="f")],
            [tf.zeros([1, 3])],
        )


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "Ftrl"])
def test_keras_optimizers_train_variables_as_with_a_dense_gradient(name):
    ids = tf.constant([1, 4, 1])
    variables = [tf.Variable(tf.ones([5, 3])) for _ in range(2)]
    # With repeated ids Keras gets tf.nn.embedding_lookup's gradient wrong.
    lookups = [
        lambda v: grouped_lookup(
            [v], [3], [feature_ids(ids)], [FeaturePlan(0, "sum")]
        )[0],
        lambda v: tf.one_hot(ids, 5) @ v,
    ]
    for variable, lookup in zip(variables, lookups, strict=True):
        optimizer = keras.optimizers.get(name)
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(lookup(variable) - 3.0))
            gradient = tape.gradient(loss, variable)
            optimizer.apply_gradients([(gradient, variable)])
    np.testing.assert_allclose(variables[0], variables[1], rtol=1e-5)


def test_gradients_of_variables_know_their_dense_shape():
    variable = tf.Variable(tf.ones([5, 3]))
    with tf.GradientTape() as tape:
        (found,) = grouped_lookup(
            [variable],
            [3],
            [feature_ids(tf.constant([1, 1]))],
            [FeaturePlan(0, "sum")],
        )
    dense = tf.convert_to_tensor(tape.gradient(found, variable))
    np.testing.assert_array_equal(dense, np.eye(5)[:, 1:2] * [[2.0] * 3])


@MODES
def test_rows_of_a_table_give_gradients_by_key_to_their_anchor(run):
    anchor = Anchor()

    def gradient(keys, others):
        with tf.GradientTape() as tape:
            first = anchor.lookup(keys)
            second = anchor.lookup(others)
            loss = tf.reduce_sum(first) + 10 * tf.reduce_sum(second)
        return tape.gradient(loss, anchor)

    slices = run(gradient)(tf.constant([[1, 9], [1, 1]]), tf.constant(9))
    found = {i: row.tolist() for i, row in sums_of(slices).items()}
    assert found == {1: [3, 3], 9: [11, 11]}
    assert slices.values.shape[-1] == 2


def test_rows_pass_unchanged():
    rows = tf.random.normal([2, 3, 4])
    same = trainable_rows(table.create(4), tf.zeros([2, 3], tf.int64), rows)
    np.testing.assert_array_equal(same, rows)


def test_an_outer_tape_sees_lookups_inside_a_function():
    anchor = Anchor()
    lookup = tf.function(anchor.lookup)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(lookup(tf.constant([2, 2])))
    assert sums_of(tape.gradient(loss, anchor))[2].tolist() == [2, 2]


def test_an_outer_tape_sees_lookups_in_a_loop_of_a_function():
    anchor = Anchor()

    @tf.function
    def gradient(steps):
        with tf.GradientTape() as tape:
            loss = tf.constant(0.0)
            for i in range(2):
                loss += tf.reduce_sum(anchor.lookup(tf.constant([i], tf.int64)))
        return tape.gradient(loss, anchor)

    assert sorted(sums_of(gradient(tf.constant(2)))) == [0, 1]


def test_what_is_not_trainable_is_not_watched():
    anchor = Anchor(trainable=False)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(anchor.lookup([1]))
    assert tape.gradient(loss, anchor) is None


def test_a_persistent_tape_gives_the_same_gradient_again():
    anchor = Anchor()
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(anchor.lookup([3]))
    first, second = (tape.gradient(loss, anchor) for _ in range(2))
    np.testing.assert_array_equal(first.values, second.values)


def test_a_handle_is_watched_when_the_tape_is_told():
    handle = table.create(2)
    with tf.GradientTape() as tape:
        tape.watch(handle)
        rows, _ = table.lookup(handle, [5], dim=2)
        loss = tf.reduce_sum(trainable_rows(handle, [5], rows))
    assert tape.gradient(loss, handle).indices.numpy().tolist() == [5]


@pytest.mark.parametrize("shape", [[], [2], [3, 2], [2, 3, 2]])
def test_rows_that_do_not_fit_their_keys_are_refused(shape):
    with pytest.raises(tf.errors.InvalidArgumentError, match="rows of shape"):
        trainable_rows(table.create(2), [[1, 2]], tf.zeros(shape))


def test_second_order_gradients_are_refused():
    variable = tf.Variable(tf.ones([3, 2]))
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            (found,) = grouped_lookup(
                [variable],
                [2],
                [feature_ids(tf.constant([1]))],
                [FeaturePlan(0, "sum")],
            )
            loss = tf.reduce_sum(found**2)
        slope = tf.reduce_sum(inner.gradient(loss, variable).values)
    with pytest.raises(LookupError, match="no second-order gradients"):
        outer.gradient(slope, variable)


@pytest.mark.parametrize("in_function", [False, True])
def test_rows_may_pass_through_for_two_anchors(in_function):
    first, second = tf.Variable([0.0]), tf.Variable([0.0])
    keys = tf.constant([1, 1], tf.int64)

    def gradients():
        with tf.GradientTape() as tape:
            rows = trainable_rows(first, keys, tf.ones([2, 3]))
            rows = trainable_rows(second, keys, rows)
            loss = tf.reduce_sum(2 * rows)
        return tape.gradient(loss, [first, second])

    for slices in (tf.function(gradients) if in_function else gradients)():
        np.testing.assert_array_equal(slices.indices, [1, 1])
        np.testing.assert_array_equal(slices.values, np.full([2, 3], 2.0))


@MODES
def test_second_order_gradients_of_a_tables_rows_are_refused(run):
    anchor = Anchor()

    def curvature(keys):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(anchor.lookup(keys) ** 2)
            slope = tf.reduce_sum(inner.gradient(loss, anchor).values)
        return outer.gradient(slope, anchor).values

    # A LookupError, which AutoGraph raises again as a StagingError.
    with pytest.raises(Exception, match="no second-order gradients"):
        run(curvature)(tf.constant([1]))


def test_gradients_of_gradients_by_rows_themselves_reach_the_table():
    anchor = Anchor()
    with tf.GradientTape() as outer:
        rows = anchor.lookup([1])
        with tf.GradientTape() as inner:
            inner.watch(rows)
            loss = tf.reduce_sum((rows + 1) ** 3)
        penalty = tf.reduce_sum(inner.gradient(loss, rows) ** 2)
    slices = outer.gradient(penalty, anchor)
    (value,) = anchor.lookup([1]).numpy()
    np.testing.assert_allclose(slices.values[0], 36 * (value + 1) ** 3)
