"""Shapes that are known, and ranks that are refused, when a graph is traced."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfembed.ops import (
    FeatureIds,
    FeaturePlan,
    grouped_lookup,
    grouped_update,
    table,
    trainable_rows,
)

ANY = tf.TensorSpec(None, tf.int64)


def traced(function, *specs):
    return tf.function(function).get_concrete_function(*specs)


def keys(*shape):
    return tf.TensorSpec(shape, tf.int64)


def rows(*shape):
    return tf.TensorSpec(shape, tf.float32)


@pytest.fixture
def handle():
    return table.create(4)


def test_a_lookup_has_the_shape_of_its_keys_and_its_dim(handle):
    values, exists = traced(
        lambda k: table.lookup(handle, k, dim=4), keys(None, 3)
    ).output_shapes
    assert values.as_list() == [None, 3, 4]
    assert exists.as_list() == [None, 3]


def test_a_handle_knows_its_rows_in_a_graph():
    def make():
        created = table.create(4)
        return tf.raw_ops.ResourceGather(
            resource=created, indices=[0], dtype=tf.float32
        ).shape

    with tf.Graph().as_default():
        assert make().as_list() == [1, 4]


@pytest.mark.parametrize(
    ("function", "specs"),
    [
        (table.upsert, (keys(3), rows(2, 4))),
        (table.upsert, (keys(3), rows(3))),
        (table.upsert, (keys(3), rows())),
        (table.import_rows, (keys(3, 1), rows(3, 4))),
        (table.import_rows, (keys(3), rows(3))),
        (trainable_rows, (keys(3), rows(3))),
    ],
)
def test_rows_of_another_rank_are_refused_when_traced(handle, function, specs):
    with pytest.raises(ValueError, match=r"[Ss]hape|[Dd]imension"):
        traced(lambda k, r: function(handle, k, r), *specs)


def test_a_handle_that_is_no_scalar_is_refused_when_traced():
    with pytest.raises(ValueError, match="rank 0"):
        traced(table.size, tf.TensorSpec([2], tf.resource))


def look_up(kind, *, rows_spec, length=0, ids_spec=None):
    variable = tf.Variable(tf.zeros([5, 4]))

    def run(ids, rows):
        feature = FeatureIds(
            kind, ids, rows, tf.zeros([0]), tf.shape(ids, tf.int64)[0]
        )
        plan = FeaturePlan(0, "sum", length)
        return grouped_lookup([variable], [4], [feature], [plan])

    return traced(run, ids_spec or keys(7), rows_spec).output_shapes[0]


def test_activations_have_the_batch_that_the_ids_tell():
    assert look_up("dense", rows_spec=keys(0)).as_list() == [7, 4]
    assert look_up("ragged", rows_spec=keys(4)).as_list() == [3, 4]
    assert look_up("ragged", rows_spec=keys(None)).as_list() == [None, 4]
    assert look_up("sparse", rows_spec=keys(7, 2)).as_list() == [None, 4]


def test_sequences_have_their_length():
    shape = look_up("ragged", rows_spec=keys(4), length=6)
    assert shape.as_list() == [3, 6, 4]


@pytest.mark.parametrize(
    ("kind", "specs"),
    [
        ("dense", {"rows_spec": keys(0), "ids_spec": keys(2, 2)}),
        ("ragged", {"rows_spec": keys(4, 1)}),
        ("sparse", {"rows_spec": keys(7)}),
        ("sparse", {"rows_spec": keys(7, 3)}),
        ("sparse", {"rows_spec": keys()}),
    ],
)
def test_features_of_another_rank_are_refused_when_traced(kind, specs):
    with pytest.raises(ValueError, match=r"[Ss]hape|[Dd]imension"):
        look_up(kind, **specs)


def test_gradients_of_another_shape_are_refused_when_traced():
    variable = tf.Variable(tf.zeros([5, 4]))

    def run(ids, gradient):
        feature = FeatureIds(
            "dense", ids, tf.zeros([0], tf.int64), tf.zeros([0]), 7
        )
        return grouped_update(
            [variable],
            [],
            [4],
            [feature],
            [FeaturePlan(0, "sum")],
            [gradient],
            rules=["sgd"],
            learning_rates=[0.1],
        )

    assert traced(run, keys(7), rows(7, 4)).output_shapes.as_list() == [1]
    with pytest.raises(ValueError, match="must be equal"):
        traced(run, keys(7), rows(7, 3))
