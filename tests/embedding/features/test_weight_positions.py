"""Weights whose indices or row splits are not those of their ids."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed
from tfembed.ops.combiners import at_positions_of

IDS = tf.constant([1, 2, 3], tf.int64)
WEIGHTS = tf.constant([0.5, 1.0, 2.0])


def sparse(values, indices=((0, 0), (0, 1), (2, 0))):
    return tf.SparseTensor(tf.constant(indices, tf.int64), values, [3, 2])


def ragged(values, splits=(0, 2, 2, 3)):
    return tf.RaggedTensor.from_row_splits(
        values, tf.constant(splits, tf.int64)
    )


# Ids, and weights elsewhere.
ELSEWHERE = {
    "another sample": (
        sparse(IDS),
        sparse(WEIGHTS, ((0, 0), (1, 0), (2, 0))),
    ),
    "another column": (
        sparse(IDS),
        sparse(WEIGHTS, ((0, 0), (0, 1), (2, 1))),
    ),
    "other row splits": (ragged(IDS), ragged(WEIGHTS, (0, 1, 2, 3))),
}


def config(**options):
    table = tfembed.TableConfig(9, 2, name="users", **options)
    return {"clicks": tfembed.FeatureConfig(table)}


def trained(ids, weights):
    embedding = tfembed.TPUEmbedding(config(), tfembed.SGD(0.1))
    embedding.enqueue({"clicks": ids}, {"clicks": weights})
    return embedding.dequeue()["clicks"]


def looked_up(kind):
    def look_up(ids, weights):
        embedding = kind(config(), None)
        embedding.build()
        return embedding({"clicks": ids}, {"clicks": weights})["clicks"]

    return look_up


LOOKUPS = pytest.mark.parametrize(
    "look_up",
    [
        trained,
        looked_up(tfembed.TPUEmbeddingV0),
        looked_up(tfembed.TPUEmbeddingForServing),
    ],
    ids=["TPUEmbedding", "V0", "serving"],
)


@pytest.mark.parametrize("case", ELSEWHERE)
@LOOKUPS
def test_they_are_refused(look_up, case):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="clicks.*with_val"
    ):
        look_up(*ELSEWHERE[case])


@pytest.mark.parametrize("case", ELSEWHERE)
def test_a_function_refuses_them_when_it_runs(case):
    embedding = tfembed.TPUEmbedding(config(), tfembed.SGD(0.1))

    @tf.function
    def step(ids, weights):
        embedding.enqueue({"clicks": ids}, {"clicks": weights})
        return embedding.dequeue()["clicks"]

    with pytest.raises(tf.errors.InvalidArgumentError, match="clicks"):
        step(*ELSEWHERE[case])


def none_for(ids):
    """Weights of no id, in a place of their own and at the ids' places."""
    nothing = tf.zeros([0])
    if isinstance(ids, tf.SparseTensor):
        empty = tf.SparseTensor(tf.zeros([0, 2], tf.int64), nothing, [3, 2])
        return [empty]
    return [
        tf.RaggedTensor.from_row_splits(nothing, [0, 0, 0, 0]),
        tf.RaggedTensor.from_row_splits(
            nothing, ids.row_splits, validate=False
        ),
    ]


@pytest.mark.parametrize("make", [sparse, ragged])
@LOOKUPS
def test_no_weights_for_ids_that_are_there_are_refused(look_up, make):
    ids = make(IDS)
    for weights in none_for(ids):
        with pytest.raises(tf.errors.InvalidArgumentError, match="clicks"):
            look_up(ids, weights)


@pytest.mark.parametrize("make", [sparse, ragged])
def test_a_function_refuses_no_weights_when_it_runs(make):
    embedding = tfembed.TPUEmbedding(config(), tfembed.SGD(0.1))
    ids = make(IDS)

    @tf.function(reduce_retracing=True)
    def step(ids, values):
        embedding.enqueue({"clicks": ids}, {"clicks": ids.with_values(values)})
        return embedding.dequeue()["clicks"]

    for values in (tf.zeros([0]), tf.zeros([2])):
        with pytest.raises(tf.errors.InvalidArgumentError, match="clicks"):
            step(ids, values)


@pytest.mark.parametrize("make", [sparse, ragged])
@LOOKUPS
def test_no_weights_for_no_ids_pass(look_up, make):
    places = {sparse: tf.zeros([0, 2], tf.int64), ragged: (0, 0, 0, 0)}[make]
    nothing = tf.zeros([0], tf.int64)
    ids, weights = make(nothing, places), make(tf.zeros([0]), places)
    assert not look_up(ids, weights).numpy().any()


@pytest.mark.parametrize("make", [sparse, ragged])
@LOOKUPS
def test_equal_places_pass_however_they_were_made(look_up, make):
    ids = make(IDS)
    tf.debugging.assert_equal(
        look_up(ids, make(WEIGHTS)).shape,
        look_up(ids, ids.with_values(WEIGHTS)).shape,
    )


@pytest.mark.parametrize("make", [sparse, ragged])
def test_weights_made_of_the_ids_cost_no_check(make):
    ids = make(IDS)
    weights = ids.with_values(WEIGHTS)
    assert at_positions_of(ids, weights, "clicks") is weights
    assert at_positions_of(ids, make(WEIGHTS), "clicks") is not weights
