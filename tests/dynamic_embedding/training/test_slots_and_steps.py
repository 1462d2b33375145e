"""Slots of optimizers, and what their steps do to rows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.optimizer_makers import ALL

DIM, STEPS = 3, 10
KEYS = tf.constant([1, 3], tf.int64)


def dense_slots(optimizer, variable):
    """The slots of a dense variable, in the order in which they were made."""
    if hasattr(optimizer, "get_slot_names"):
        names = optimizer.get_slot_names()
        return {n: optimizer.get_slot(variable, n).numpy() for n in names}
    found = [v for v in optimizer.variables if tuple(v.shape) == (2, DIM)]
    return {v.name: v.numpy() for v in found}


@pytest.mark.parametrize(
    ("in_function", "bp_v2"), [(False, True), (True, False)]
)
@pytest.mark.parametrize("name", ALL)
def test_row_73_ten_steps_end_where_a_dense_variable_does(
    name, in_function, bp_v2
):
    rng = np.random.default_rng(7)
    start = rng.normal(size=(2, DIM)).astype(np.float32)
    targets = rng.normal(size=(STEPS, 2, DIM)).astype(np.float32)
    dense, reference = tf.Variable(start), ALL[name](0.1)
    v = de.Variable(dim=DIM, bp_v2=bp_v2, devices=["/CPU:0"] * 2)
    v.upsert(KEYS, start)
    optimizer = de.DynamicEmbeddingOptimizer(ALL[name](0.1), bp_v2=bp_v2)

    def step(target):
        with tf.GradientTape() as tape:
            rows = de.embedding_lookup(v, KEYS, name="rows")
            loss = tf.reduce_sum((rows - target) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    train = tf.function(step) if in_function else step
    for target in targets:
        train(tf.constant(target))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((dense - target) ** 2)
        reference.apply_gradients([(tape.gradient(loss, dense), dense)])

    tolerance = {"rtol": 2e-4, "atol": 1e-5}
    np.testing.assert_allclose(v.lookup(KEYS), dense.numpy(), **tolerance)
    slots = v.get_slot_variables(optimizer)
    wanted = dense_slots(reference, dense)
    assert len(slots) == len(wanted)
    for slot in slots:
        label = slot.name.rsplit("/", 1)[1]
        (values,) = (w for n, w in wanted.items() if n.endswith(label))
        if name == "Adagrad":
            values = values + 1e-2  # Keras' epsilon is in the table's slot.
        np.testing.assert_allclose(slot.lookup(KEYS), values, **tolerance)


BOTH_WAYS = pytest.mark.parametrize("name", ["SGD", "SGD with momentum"])
SHARDS = pytest.mark.parametrize("shards", [1, 3])
IN_FUNCTION = pytest.mark.parametrize("in_function", [False, True])


def step(optimizer, v, *lookups):
    """One step on the sum of all rows of all lookups."""
    with tf.GradientTape() as tape:
        rows = [de.embedding_lookup(v, ids, name="x") for ids in lookups]
        loss = tf.add_n([tf.reduce_sum(r) for r in rows])
    optimizer.apply_gradients([(tape.gradient(loss, v), v)])


@BOTH_WAYS
@SHARDS
@IN_FUNCTION
def test_row_74_gradients_of_repeated_ids_add_up(name, shards, in_function):
    v = de.Variable(dim=2, devices=["/CPU:0"] * shards)
    optimizer = de.DynamicEmbeddingOptimizer(ALL[name](1.0))
    train = tf.function(step) if in_function else step

    train(optimizer, v, tf.constant([5, 5, 5], tf.int64))

    assert v.lookup([5]).numpy().tolist() == [[-3, -3]]
    assert int(v.size()) == 1
    assert int(optimizer.iterations) == 1


@BOTH_WAYS
@SHARDS
@IN_FUNCTION
def test_row_75_two_lookups_in_a_step_both_count(name, shards, in_function):
    v = de.Variable(dim=1, devices=["/CPU:0"] * shards)
    optimizer = de.DynamicEmbeddingOptimizer(ALL[name](1.0))
    train = tf.function(step) if in_function else step

    train(
        optimizer,
        v,
        tf.constant([1, 2], tf.int64),
        tf.constant([[3, 4, 2]], tf.int64),
    )

    rows = v.lookup([1, 2, 3, 4]).numpy()
    assert rows.tolist() == [[-1], [-2], [-1], [-1]]


def test_row_60_slots_are_those_of_their_own_variable():
    first, second = de.Variable(dim=2, name="v1"), de.Variable(name="v2")
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.Adam(0.1))

    def loss():
        one = de.embedding_lookup(first, [1, 2, 3], name="a")
        two = de.embedding_lookup(second, [4, 5], name="b")
        return tf.reduce_sum(one) + tf.reduce_sum(two)

    optimizer.minimize(loss, [first, second])
    slots = first.get_slot_variables(optimizer)
    assert [s.name for s in slots] == ["v1/adam/momentum", "v1/adam/velocity"]
    assert [int(s.size()) for s in slots] == [3, 3]

    first.remove([1])
    assert [int(s.size()) for s in slots] == [2, 2]
    others = second.get_slot_variables(optimizer)
    assert [int(s.size()) for s in others] == [2, 2]
    assert np.all(others[0].lookup([4, 5]).numpy() != 0)


def test_row_91_slots_of_no_optimizer_are_a_type_error():
    with pytest.raises(TypeError, match="must be a DynamicEmbeddingOptimizer"):
        de.Variable().get_slot_variables("x")
