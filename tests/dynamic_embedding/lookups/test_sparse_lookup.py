"""Sparse lookups, fused and general, beside a float64 oracle."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de

COMBINERS = pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
# One shard takes the fused way, the others the general one.
WAYS = pytest.mark.parametrize(
    ("shards", "max_norm"), [(1, None), (3, None), (1, 1e9)]
)
DIM, BATCH = 3, 6


def table(shards):
    v = de.Variable(dim=DIM, devices=["/CPU:0"] * shards)
    rows = np.random.default_rng(1).normal(size=(20, DIM)).astype(np.float32)
    v.upsert(np.arange(20), rows)
    return v, rows.astype(np.float64)


def bags():
    """Rows 2 and 5 are empty; ids repeat."""
    indices = [[0, 0], [0, 2], [1, 0], [3, 1], [3, 2], [3, 3], [4, 0]]
    ids = [3, 3, 7, 1, 3, 2, 7]
    weights = [0.5, 2.0, 1.5, 0.25, 1.0, 3.0, 0.5]
    shape = [BATCH, 4]
    return (
        tf.SparseTensor(indices, tf.constant(ids, tf.int64), shape),
        tf.SparseTensor(indices, tf.constant(weights), shape),
    )


def matrix(sp_ids, sp_weights, combiner):
    """[BATCH, 20]: activations = matrix @ rows."""
    out = np.zeros([BATCH, 20])
    bag = sp_ids.indices.numpy()[:, 0]
    ids = sp_ids.values.numpy()
    w = (
        sp_weights.values.numpy()
        if sp_weights is not None
        else np.ones(len(ids))
    )
    for b in range(BATCH):
        mine = bag == b
        divisor = {
            "sum": 1.0,
            "mean": w[mine].sum(),
            "sqrtn": np.sqrt((w[mine] ** 2).sum()),
        }[combiner]
        for key, weight in zip(ids[mine], w[mine], strict=True):
            out[b, key] += weight / divisor
    return out


@WAYS
@COMBINERS
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("in_function", [False, True])
def test_bags_are_combined_and_their_gradients_summed(
    shards, max_norm, combiner, weighted, in_function
):
    v, rows = table(shards)
    sp_ids, sp_weights = bags()
    sp_weights = sp_weights if weighted else None
    upstream = np.random.default_rng(2).normal(size=(BATCH, DIM))

    def step():
        with tf.GradientTape() as tape:
            out = de.embedding_lookup_sparse(
                v, sp_ids, sp_weights, combiner=combiner, max_norm=max_norm
            )
            loss = tf.reduce_sum(out * tf.cast(upstream, tf.float32))
        return out, tape.gradient(loss, v)

    out, slices = (tf.function(step) if in_function else step)()

    linear = matrix(sp_ids, sp_weights, combiner)
    np.testing.assert_allclose(out, linear @ rows, rtol=1e-5, atol=1e-6)
    gradient = np.zeros([20, DIM])
    np.add.at(gradient, slices.indices.numpy(), slices.values.numpy())
    np.testing.assert_allclose(
        gradient, linear.T @ upstream, rtol=1e-5, atol=1e-6
    )


def test_a_sparse_lookups_trainable_stands_for_its_distinct_ids():
    v, _ = table(1)
    sp_ids, _ = bags()
    with tf.GradientTape() as tape:
        out, trainable = de.embedding_lookup_sparse(
            v, sp_ids, None, combiner="sum", return_trainable=True
        )
        loss = tf.reduce_sum(out)
    slices = tape.gradient(loss, trainable)
    assert dict(zip(slices.indices.numpy(), slices.values.numpy()[:, 0])) == {
        3: 3,
        7: 2,
        1: 1,
        2: 1,
    }


def test_no_ids_at_all_give_zeros():
    v, _ = table(1)
    none = tf.SparseTensor(
        tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64), [3, 2]
    )
    out = de.safe_embedding_lookup_sparse(v, none)
    np.testing.assert_array_equal(out, np.zeros([3, DIM]))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"combiner": "max"}, ValueError, "`combiner` must be one of"),
        ({"ids": tf.constant([[1]], tf.int64)}, TypeError, "a SparseTensor"),
        ({"ids": tf.sparse.from_dense([[1.0]])}, TypeError, "must be int64"),
        (
            {"weights": tf.sparse.from_dense([[1]])},
            TypeError,
            "must be float32; got int",
        ),
        ({"weights": tf.constant([[1.0]])}, TypeError, "a SparseTensor"),
        (
            {"weights": tf.sparse.from_dense(tf.ones([1, 1], tf.float64))},
            TypeError,
            "got float64",
        ),
    ],
)
@pytest.mark.parametrize(
    "look_up", [de.embedding_lookup_sparse, de.safe_embedding_lookup_sparse]
)
def test_arguments_that_are_not_allowed_are_refused(
    look_up, change, error, text
):
    v, _ = table(1)
    ids = change.get("ids", tf.sparse.from_dense(tf.constant([[1]], tf.int64)))
    combiner = change.get("combiner", "mean")
    with pytest.raises(error, match=text):
        look_up(v, ids, change.get("weights"), combiner=combiner)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("spec", ["eager", "known", "partly", "unknown"])
@pytest.mark.parametrize("weighted", [False, True])
def test_ids_of_any_rank_are_combined_by_example(shards, spec, weighted):
    v = de.Variable(dim=1, devices=["/CPU:0"] * shards)
    v.upsert([0, 1, 2], [[1.0], [2.0], [4.0]])
    places = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 1, 0], [1, 2, 3]]
    ids = tf.SparseTensor(
        places, tf.constant([0, 1, 2, 2, 0], tf.int64), [3, 4, 5]
    )
    weights = ids.with_values([1.0, 1.0, 3.0, 1.0, 1.0]) if weighted else None
    shapes = []

    def look_up(ids):
        rows = de.embedding_lookup_sparse(v, ids, weights, combiner="sum")
        shapes.append(rows.shape.as_list())
        return rows

    shape = {"known": [3, 4, 5], "partly": [3, None, None]}.get(spec)
    if spec != "eager":
        signature = [tf.SparseTensorSpec(shape, tf.int64)]
        look_up = tf.function(look_up, input_signature=signature)

    with tf.GradientTape() as tape:
        rows = look_up(ids)
        loss = tf.reduce_sum(rows)

    assert rows.numpy()[:, 0].tolist() == [15 if weighted else 7, 5, 0]
    assert shapes[0] == [None if spec == "unknown" else 3, 1]
    gradient = tape.gradient(loss, v)
    sums = dict.fromkeys([0, 1, 2], 0.0)
    for key, value in zip(
        gradient.indices.numpy(), gradient.values.numpy(), strict=True
    ):
        sums[key] += value[0]
    assert sums == {0: 2, 1: 1, 2: 4 if weighted else 2}


def test_ids_of_rank_1_are_bags_of_one():
    v = de.Variable(dim=1, name="rank_1", initializer=2.0)
    ids = tf.SparseTensor([[0], [2]], tf.constant([5, 6], tf.int64), [3])
    rows = de.embedding_lookup_sparse(v, ids, None)
    assert rows.numpy().tolist() == [[2], [0], [2]]


@WAYS
@COMBINERS
@pytest.mark.parametrize("tape_is", ["eager", "in", "around", "around cond"])
@pytest.mark.parametrize("safe", [False, True])
def test_weights_have_gradients_as_tensorflows(
    shards, max_norm, combiner, tape_is, safe
):
    v, rows = table(shards)
    sp_ids, sp_weights = bags()
    name = "safe_embedding_lookup_sparse" if safe else "embedding_lookup_sparse"

    def look_up(module, params, numbers):
        weights = sp_weights.with_values(numbers)
        return getattr(module, name)(
            params, sp_ids, weights, combiner=combiner, max_norm=max_norm
        )

    def branched(module, params, numbers):
        return tf.cond(
            tf.reduce_any(numbers > 0),
            lambda: look_up(module, params, numbers),
            lambda: tf.zeros([BATCH, DIM]),
        )

    forward = {"around": look_up, "around cond": branched}.get(tape_is)
    forward = tf.function(forward) if forward else look_up

    def step(module, params):
        numbers = tf.identity(sp_weights.values)
        with tf.GradientTape() as tape:
            tape.watch(numbers)
            out = forward(module, params, numbers)
            loss = tf.reduce_sum(tf.sin(out[:5]))
        return tf.convert_to_tensor(tape.gradient(loss, numbers))

    step = tf.function(step) if tape_is == "in" else step
    expected = step(tf.nn, tf.Variable(rows, dtype=tf.float32))
    np.testing.assert_allclose(step(de, v), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_persistent_tape_around_a_function_gives_gradients_again(
    shards, weighted
):
    v, _ = table(shards)
    sp_ids, sp_weights = bags()
    scale = tf.Variable(2.0)

    @tf.function
    def look_up(numbers):
        weights = sp_weights.with_values(numbers) if weighted else None
        return scale * de.embedding_lookup_sparse(
            v, sp_ids, weights, combiner="sum"
        )

    numbers = tf.identity(sp_weights.values)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(numbers)
        loss = tf.reduce_sum(look_up(numbers))
    expected = 2 * matrix(sp_ids, sp_weights if weighted else None, "sum")
    for _ in range(2):
        slices = tape.gradient(loss, v)
        gradient = np.zeros([20, DIM])
        np.add.at(gradient, slices.indices.numpy(), slices.values.numpy())
        np.testing.assert_allclose(gradient[:, 0], expected.sum(0), rtol=1e-5)
        of_weights = tape.gradient(loss, numbers)
        rows = v.lookup(sp_ids.values).numpy().sum(1)
        if weighted:
            np.testing.assert_allclose(of_weights, 2 * rows, rtol=1e-5)
