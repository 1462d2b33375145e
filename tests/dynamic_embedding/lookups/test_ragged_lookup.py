"""Ragged lookups, fused and general, beside the sparse ones."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de

ragged_ops = de.ragged_embedding_ops
COMBINERS = pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
IDS = [[3, 3], [7], [], [1, -3, 2], [7], []]
WEIGHTS = [[0.5, 2.0], [-1.5], [], [0.25, 1.0, -3.0], [0.5], []]


def table(shards=1, dim=3):
    v = de.Variable(dim=dim, devices=["/CPU:0"] * shards)
    rows = np.random.default_rng(1).normal(size=(20, dim)).astype(np.float32)
    v.upsert(np.arange(20) - 5, rows)
    return v


def bags():
    ids = tf.ragged.constant(IDS, tf.int64, row_splits_dtype=tf.int32)
    weights = tf.ragged.constant(WEIGHTS, tf.float32, row_splits_dtype=tf.int32)
    return ids, weights


# One shard takes the fused way, the others the general one.
PARAMS = pytest.mark.parametrize(
    "params",
    [
        lambda: table(),
        lambda: table(3),
        lambda: de.shadow_ops.ShadowVariable(table()),
    ],
    ids=["fused", "shards", "shadow"],
)


@PARAMS
@COMBINERS
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("in_function", [False, True])
def test_a_ragged_lookup_is_the_sparse_one(
    params, combiner, weighted, in_function
):
    params, sparse_params = params(), table()
    ids, weights = bags()
    # The oracle's bags must not be ill-posed.
    weights = tf.abs(weights) if weighted else None
    sparse = [x if x is None else x.to_sparse() for x in (ids, weights)]

    def step(look_up, source, ids, weights):
        with tf.GradientTape() as tape:
            out = look_up(source, ids, weights, combiner=combiner)
            loss = tf.reduce_sum(out**2)
        return out, tape.gradient(loss, source)

    run = tf.function(step) if in_function else step
    out, slices = run(ragged_ops.embedding_lookup_sparse, params, ids, weights)
    expected, other = step(de.embedding_lookup_sparse, sparse_params, *sparse)

    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    gradients = [np.zeros([20, 3]), np.zeros([20, 3])]
    for sums, found in zip(gradients, (slices, other), strict=True):
        np.add.at(sums, found.indices.numpy() + 5, found.values.numpy())
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-5)


@PARAMS
@COMBINERS
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("default_id", [None, -4])
def test_a_safe_ragged_lookup_is_the_sparse_one(
    params, combiner, weighted, default_id
):
    ids, weights = bags()
    sparse_ids, sparse_weights = ids.to_sparse(), weights.to_sparse()
    out = ragged_ops.safe_embedding_lookup_sparse(
        params(), ids, weights if weighted else None, combiner, default_id
    )
    expected = de.safe_embedding_lookup_sparse(
        table(),
        sparse_ids,
        sparse_weights if weighted else None,
        combiner,
        default_id,
    )
    assert out.shape == (6, 3)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("shards", [1, 2])
def test_half_precision_is_combined_in_float32(dtype, shards):
    # 2048 + 1 is 2048 in float16, and 256 + 1 is 256 in bfloat16.
    many = 4096 if dtype == tf.float16 else 512
    v = de.Variable(dim=1, value_dtype=dtype, devices=["/CPU:0"] * shards)
    v.upsert([1], tf.ones([1, 1], dtype))
    ids = tf.RaggedTensor.from_row_lengths(tf.ones([many], tf.int64), [many])

    out = ragged_ops.embedding_lookup_sparse(v, ids, None, combiner="sum")
    sparse = de.embedding_lookup_sparse(
        v, ids.to_sparse(), None, combiner="sum"
    )
    assert out.dtype == sparse.dtype == dtype
    assert float(out[0, 0]) == float(sparse[0, 0]) == many


def test_integers_can_be_summed_only():
    v = de.Variable(dim=1, value_dtype=tf.int32)
    v.upsert([1, 2], tf.constant([[3], [4]]))
    ids = tf.ragged.constant([[1, 2], [2]], tf.int64)
    out = ragged_ops.embedding_lookup_sparse(v, ids, None, combiner="sum")
    assert out.numpy().tolist() == [[7], [4]]
    with pytest.raises(TypeError, match="by 'sum' only"):
        ragged_ops.embedding_lookup_sparse(v, ids, None, combiner="mean")


RAGGED = tf.ragged.constant([[1]], tf.int64)


@pytest.mark.parametrize(
    ("ids", "options", "error", "text"),
    [
        (tf.constant([[1]], tf.int64), {}, TypeError, "a RaggedTensor"),
        (RAGGED, {"weights": tf.constant([[1.0]])}, TypeError, "RaggedTensor"),
        (RAGGED, {"combiner": "max"}, ValueError, "`combiner` must be one of"),
        (
            tf.ragged.constant([[[1]]], tf.int64),
            {},
            ValueError,
            "must have rank 2",
        ),
    ],
)
@pytest.mark.parametrize(
    "look_up",
    [
        ragged_ops.embedding_lookup_sparse,
        ragged_ops.safe_embedding_lookup_sparse,
    ],
)
def test_arguments_that_are_not_allowed_are_refused(
    look_up, ids, options, error, text
):
    with pytest.raises(error, match=text):
        look_up(
            table(),
            ids,
            options.get("weights"),
            combiner=options.get("combiner", "sum"),
        )
