"""Strings as ids of the grouped ops."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import ops
from tfembed.ops import table

NAMES = ["a", "b", "", "a", "zero \0 byte, and more than twenty bytes"]


def made(key_dtype=tf.string, value_dtype=tf.float32):
    return table.create(
        2, key_dtype=key_dtype, value_dtype=value_dtype, name="t"
    )


def feature(names):
    return ops.feature_ids(tf.constant(names), name="x")


def plan(place=0):
    return ops.FeaturePlan(table=place, combiner="sum", name="x")


def test_the_gradient_names_each_string_once_in_the_order_of_the_batch():
    ones = tf.ones([5, 2])
    ((ids, sums),) = ops.grouped_lookup_gradient(
        [made()], [2], [feature(NAMES)], [plan()], [ones]
    )
    assert ids.numpy().tolist() == [
        name.encode() for name in (*NAMES[:3], NAMES[4])
    ]
    np.testing.assert_array_equal(sums[:, 0], [2, 1, 1, 1])


def test_tables_of_strings_and_of_integers_go_together():
    strings, integers = made(), made(tf.int64)
    features = [feature(NAMES), feature([3, 4, 3]), feature(["b"])]
    plans = [plan(0), plan(1), plan(0)]
    gradients = [tf.ones([5, 2]), tf.ones([3, 2]), tf.ones([1, 2])]
    ops.grouped_update(
        [strings, integers],
        [],
        [2, 2],
        features,
        plans,
        gradients,
        rules=["sgd", "sgd"],
        learning_rates=[1.0, 1.0],
    )
    rows = ops.grouped_lookup([strings, integers], [2, 2], features, plans)
    np.testing.assert_array_equal(rows[0][:, 0], [-2, -2, -1, -2, -1])
    np.testing.assert_array_equal(rows[1][:, 0], [-2, -1, -2])
    assert int(table.size(strings)) == 4
    assert sorted(table.keys(strings, key_dtype=tf.string).numpy()) == sorted(
        {name.encode() for name in NAMES}
    )


def test_a_lookup_adds_no_string():
    handle = made()
    before = table.stats(handle).index_bytes
    ops.grouped_lookup([handle], [2], [feature(NAMES)], [plan()])
    assert int(table.stats(handle).index_bytes) == int(before)


@pytest.mark.parametrize(
    ("key_dtype", "ids", "text"),
    [
        (tf.int64, ["a"], "feature 'x'.*ids are strings.*'t' are integers"),
        (tf.string, [1], "feature 'x'.*ids are integers.*'t' are strings"),
    ],
)
def test_ids_of_the_other_kind_are_refused_by_name(key_dtype, ids, text):
    handle = made(key_dtype)
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        ops.grouped_lookup([handle], [2], [feature(ids)], [plan()])
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        ops.grouped_update(
            [handle],
            [],
            [2],
            [feature(ids)],
            [plan()],
            [tf.ones([1, 2])],
            rules=["sgd"],
            learning_rates=[1.0],
        )
    assert int(table.size(handle)) == 0


def test_strings_of_a_variable_are_refused():
    variable = tf.Variable(tf.zeros([3, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="a variable"):
        ops.grouped_lookup([variable], [2], [feature(["a"])], [plan()])


def test_one_tables_features_have_ids_of_one_kind_in_a_gradient():
    with pytest.raises(tf.errors.InvalidArgumentError, match="another feature"):
        ops.grouped_lookup_gradient(
            [made()],
            [2],
            [feature(["a"]), feature([1])],
            [plan(), plan()],
            [tf.ones([1, 2])] * 2,
        )


@pytest.mark.parametrize("value_dtype", [tf.float64, tf.int32, tf.bool])
def test_rows_that_are_no_floats_are_refused(value_dtype):
    handle = made(value_dtype=value_dtype)
    with pytest.raises(tf.errors.InvalidArgumentError, match="they must be"):
        ops.grouped_lookup([handle], [2], [feature(["a"])], [plan()])
