"""Dense lookups and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import errors
from tfembed.dynamic_embedding.lookups import trainable
from tfembed.ops import trainable_rows

SHARDS = pytest.mark.parametrize("shards", [1, 3])


def filled(dim=2, shards=1, keys=10):
    v = de.Variable(dim=dim, devices=["/CPU:0"] * shards)
    rows = np.arange(keys * dim, dtype=np.float32).reshape(keys, dim) + 1
    v.upsert(np.arange(keys), rows)
    return v, rows


def summed(slices):
    """Gradient by key, repeats summed."""
    total = {}
    keys, values = slices.indices.numpy(), slices.values.numpy()
    for key, row in zip(keys, values, strict=True):
        total[int(key)] = total.get(int(key), 0) + row
    return {key: row.tolist() for key, row in total.items()}


@SHARDS
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0,)])
@pytest.mark.parametrize(
    "look_up", [de.embedding_lookup, de.embedding_lookup_unique]
)
def test_rows_have_the_shape_of_the_ids(shards, shape, look_up):
    v, rows = filled(shards=shards)
    ids = np.random.default_rng(0).integers(0, 10, shape)
    np.testing.assert_array_equal(look_up(v, ids, name="ids"), rows[ids])


@SHARDS
@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize(
    "look_up", [de.embedding_lookup, de.embedding_lookup_unique]
)
def test_gradients_of_repeated_ids_and_several_lookups_all_count(
    shards, in_function, look_up
):
    v, _ = filled(shards=shards)

    def gradient(first, second):
        with tf.GradientTape() as tape:
            one = look_up(v, first, name="one")
            two = look_up(v, second, name="two")
            loss = tf.reduce_sum(one) + 10 * tf.reduce_sum(two)
        return tape.gradient(loss, v)

    if in_function:
        gradient = tf.function(gradient)
    slices = gradient(
        tf.constant([5, 5, 3], tf.int64), tf.constant([[3], [99]], tf.int64)
    )

    assert summed(slices) == {5: [2, 2], 3: [11, 11], 99: [10, 10]}
    assert slices.indices.dtype == tf.int64


def test_a_tape_outside_a_function_sees_the_lookups_inside():
    v, _ = filled()

    @tf.function
    def rows(ids):
        return 3 * de.embedding_lookup(v, ids)

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(rows(tf.constant([1, 1], tf.int64)))
    assert summed(tape.gradient(loss, v)) == {1: [6, 6]}


def test_a_lookup_that_no_tape_sees_makes_no_gradient_ops(monkeypatch):
    v, _ = filled()
    watched = []

    def spy(anchor, *inputs, **options):
        watched.append(anchor)
        return trainable_rows(anchor, *inputs, **options)

    monkeypatch.setattr(trainable, "trainable_rows", spy)
    rows = de.embedding_lookup(v, [4], name="x")
    assert not watched
    with tf.GradientTape():
        again = de.embedding_lookup(v, [4], name="x")
    np.testing.assert_array_equal(again, rows)
    assert watched == [v]


def test_a_persistent_tape_gives_the_same_gradient_twice():
    v, _ = filled()
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(de.embedding_lookup(v, [4], name="x") ** 2)
    for _ in range(2):
        assert summed(tape.gradient(loss, v)) == {4: [18, 20]}


def test_a_function_is_traced_once_for_any_number_of_ids():
    v, _ = filled()
    traces = []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(ids):
        traces.append(1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(de.embedding_lookup(v, ids))
        return tape.gradient(loss, v).values

    for n in (1, 5, 0, 9):
        assert step(tf.range(n, dtype=tf.int64)).shape == (n, 2)
    assert len(traces) == 1


def test_a_list_of_ids_may_hold_tensors_of_a_function():
    v, rows = filled()

    @tf.function
    def look_up(n):
        return de.embedding_lookup(v, [n, 2])

    np.testing.assert_array_equal(look_up(tf.constant(1, tf.int64)), rows[1:3])


def test_a_variable_that_is_not_trainable_has_no_gradient():
    v = de.Variable(dim=2, trainable=False)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(de.embedding_lookup(v, [1], name="x"))
    assert tape.gradient(loss, v) is None


def test_a_trainable_stands_for_its_lookup_alone():
    v, _ = filled()
    with tf.GradientTape() as tape:
        one, first = de.embedding_lookup(
            v, [1, 2], name="a", return_trainable=True
        )
        two, second = de.embedding_lookup(
            v, [2], name="b", return_trainable=True
        )
        loss = tf.reduce_sum(one) + 10 * tf.reduce_sum(two)
    gradients = tape.gradient(loss, [first, second, v])

    assert [summed(g) for g in gradients] == [
        {1: [1, 1], 2: [1, 1]},
        {2: [10, 10]},
        {1: [1, 1], 2: [11, 11]},
    ]
    assert v.get_trainable_by_name("b") is second
    assert v.get_trainable_by_name("c") is None


def test_return_trainable_is_for_eager_mode():
    v, _ = filled()

    @tf.function
    def step():
        return de.embedding_lookup(v, [1], name="x", return_trainable=True)[0]

    with pytest.raises(NotImplementedError, match="eager mode only"):
        step()


@pytest.mark.parametrize(
    ("params", "ids", "error", "text"),
    [
        (
            lambda v: v,
            tf.constant([1], tf.uint64),
            TypeError,
            "must be int64",
        ),
        (lambda v: v, [1.5], TypeError, "must be integers"),
        (lambda v: [v, v], [1], ValueError, "a list of 2"),
        (lambda v: tf.zeros([2, 2]), [1], TypeError, "Variable"),
    ],
)
def test_arguments_that_are_not_allowed_are_refused(params, ids, error, text):
    with pytest.raises(error, match=text):
        de.embedding_lookup(params(filled()[0]), ids, name="x")


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
@pytest.mark.parametrize("in_function", [False, True])
def test_rows_of_any_floats_have_gradients_of_float32(dtype, in_function):
    v = de.Variable(value_dtype=dtype, dim=1, devices=["/CPU:0"] * 2)
    row = tf.constant([[1 / 3]], dtype)
    v.upsert([1], row)

    def step():
        with tf.GradientTape() as tape:
            rows = de.embedding_lookup(v, [1, 2, 1], name="x")
            loss = tf.reduce_sum(2 * rows)
        return rows, tape.gradient(loss, v)

    rows, gradient = (tf.function(step) if in_function else step)()
    assert rows.dtype == dtype
    assert rows.numpy()[0, 0] == row.numpy()[0, 0]
    assert gradient.values.dtype == tf.float32
    assert summed(gradient) == {1: [4], 2: [2]}


def sparse_ids():
    return tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [1, 1])


@pytest.mark.parametrize("dtype", [tf.int64, tf.int8, tf.string])
@pytest.mark.parametrize("max_norm", [1.0, tf.constant(1.0)])
@pytest.mark.parametrize(
    "look_up",
    [
        lambda v, m: de.embedding_lookup(v, [1], name="x", max_norm=m),
        lambda v, m: de.embedding_lookup(
            v, [1], name="x", max_norm=m, return_trainable=True
        ),
        lambda v, m: de.embedding_lookup_unique(v, [1], name="x", max_norm=m),
        lambda v, m: de.embedding_lookup_sparse(
            v, sparse_ids(), None, combiner="sum", max_norm=m
        ),
        lambda v, m: de.safe_embedding_lookup_sparse(
            v, sparse_ids(), combiner="sum", max_norm=m
        ),
        lambda v, m: de.TrainableWrapper(v, [1], m, name="x"),
        lambda v, m: de.shadow_ops.ShadowVariable(v, max_norm=m),
    ],
    ids=["dense", "trainable", "unique", "sparse", "safe", "wrapper", "shadow"],
)
def test_max_norm_is_refused_for_rows_that_are_no_floats(
    look_up, max_norm, dtype
):
    v = de.Variable(value_dtype=dtype, dim=1, name="counts")
    with pytest.raises(
        errors.DtypeError, match=f"`max_norm`.*'counts'.*{dtype.name}"
    ):
        look_up(v, max_norm)
    assert v.trainable_store == {}


def test_a_shadow_that_refuses_max_norm_keeps_its_ids():
    v = de.Variable(value_dtype=tf.int32, dim=1, name="counts")
    shadow = de.shadow_ops.ShadowVariable(v)
    shadow.embedding_lookup([1])
    with pytest.raises(errors.DtypeError, match=r"`max_norm`.*'counts'"):
        shadow.embedding_lookup([2], max_norm=1.0)
    assert shadow.ids.numpy().tolist() == [1]


def test_rows_of_integers_have_no_gradient():
    v = de.Variable(value_dtype=tf.int32, dim=1)
    v.upsert([1], tf.constant([[3]]))
    with tf.GradientTape() as tape:
        rows = de.embedding_lookup(v, [1], name="x")
        loss = tf.reduce_sum(tf.cast(rows, tf.float32))
    assert rows.numpy().tolist() == [[3]]
    assert tape.gradient(loss, v) is None
