"""Safe lookups fill bags without ids by `default_id`, sparse and ragged."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import errors, optimizers

DIM = 3
# One shard takes the fused way, the others the general one.
SHARDS = pytest.mark.parametrize("shards", [1, 2])


def filled(shards):
    v = de.Variable(dim=DIM, devices=["/CPU:0"] * shards)
    rows = np.random.default_rng(1).normal(size=(20, DIM)).astype(np.float32)
    v.upsert(np.arange(20), rows)
    return v, rows


def sparse(v, ids, weights=None, *, default_id):
    return de.safe_embedding_lookup_sparse(
        v, ids, weights, default_id=default_id
    )


def ragged(v, ids, weights=None, *, default_id):
    ids = tf.RaggedTensor.from_sparse(ids)
    if weights is not None:
        weights = tf.RaggedTensor.from_sparse(weights)
    return de.ragged_embedding_ops.safe_embedding_lookup_sparse(
        v, ids, weights, default_id=default_id
    )


LOOK_UPS = pytest.mark.parametrize("look_up", [sparse, ragged])


def no_ids(shape):
    return tf.SparseTensor(
        tf.zeros([0, len(shape)], tf.int64), tf.zeros([0], tf.int64), shape
    )


def one_id(key, dtype, bags):
    """`key` in the first bag."""
    values = tf.constant([str(key) if dtype == tf.string else key], dtype)
    return tf.SparseTensor([[0, 0]], values, [bags, 1])


def dense(slices):
    sums = np.zeros([20, DIM])
    np.add.at(sums, slices.indices.numpy(), slices.values.numpy())
    return sums


@SHARDS
@pytest.mark.parametrize("shadowed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize(
    ("look_up", "shape"),
    [
        (sparse, [3, 0]),
        (sparse, [0, 0]),
        (sparse, [3, 2, 0]),
        (sparse, [3, 0, 2]),
        (ragged, [3, 0]),
        (ragged, [0, 0]),
    ],
)
def test_a_batch_without_ids_is_filled_as_tensorflow_fills_it(
    shards, shadowed, weighted, in_function, look_up, shape
):
    v, rows = filled(shards)
    source = de.shadow_ops.ShadowVariable(v) if shadowed else v

    def step(look_up, source, ids):
        weights = ids.with_values(tf.zeros([0])) if weighted else None
        with tf.GradientTape() as tape:
            out = look_up(source, ids, weights, default_id=3)
            loss = tf.reduce_sum(out)
        return out, tape.gradient(loss, source)

    def run(ids):
        return step(look_up, source, ids)

    if in_function:
        spec = tf.SparseTensorSpec([None] * len(shape), tf.int64)
        run = tf.function(run, input_signature=[spec])
    out, slices = run(no_ids(shape))
    expected, other = step(
        tf.nn.safe_embedding_lookup_sparse,
        tf.Variable(rows),
        no_ids(shape),
    )

    assert out.shape == expected.shape
    np.testing.assert_allclose(out, expected)
    np.testing.assert_allclose(dense(slices), dense(other))


@SHARDS
def test_examples_without_any_ids_train_the_default_ids_row(shards):
    v = de.Variable(dim=1, devices=["/CPU:0"] * shards, name="parsed")
    optimizer = de.DynamicEmbeddingOptimizer(optimizers.SGD(1.0))
    example = tf.train.Example().SerializeToString()

    @tf.function
    def step(examples):
        parsed = tf.io.parse_example(
            examples, {"ids": tf.io.VarLenFeature(tf.int64)}
        )
        with tf.GradientTape() as tape:
            out = de.safe_embedding_lookup_sparse(
                v, parsed["ids"], default_id=7
            )
            loss = tf.reduce_sum(out)
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    step(tf.constant([example] * 3))
    assert v.lookup([7]).numpy().tolist() == [[-3]]
    assert int(v.size()) == 1


@SHARDS
def test_weights_that_fill_a_batch_have_gradients(shards):
    v, _ = filled(shards)
    ids = no_ids([3, 0])
    numbers = tf.zeros([0])
    with tf.GradientTape() as tape:
        tape.watch(numbers)
        out = de.safe_embedding_lookup_sparse(
            v, ids, ids.with_values(numbers), default_id=3
        )
        loss = tf.reduce_sum(out)
    assert tape.gradient(loss, numbers).shape == [0]


@LOOK_UPS
@pytest.mark.parametrize(
    ("keys", "default_id", "error", "text"),
    [
        (tf.int64, "a", errors.DtypeError, "one int64 id; got 'a'"),
        (tf.int64, 1.5, errors.DtypeError, "one int64 id; got 1.5"),
        (tf.int64, np.float32(1), errors.DtypeError, "one int64 id"),
        (tf.int64, tf.constant(1.5), errors.DtypeError, "one int64 id"),
        (tf.int64, True, errors.DtypeError, "one int64 id; got True"),
        (tf.int64, 2**63, errors.DtypeError, "one int64 id; got 9223"),
        (tf.int64, [1], errors.ArgumentError, r"id; got shape \(1,\)"),
        (tf.int32, 2**31, errors.DtypeError, "one int32 id; got 2147"),
        (
            tf.int32,
            tf.constant(1, tf.int64),
            errors.DtypeError,
            "one int32 id; got <tf.Tensor",
        ),
        (tf.string, 1, errors.DtypeError, "one string id; got 1"),
    ],
)
def test_a_default_id_that_is_no_key_is_refused(
    look_up, keys, default_id, error, text
):
    v = de.Variable(keys, dim=1, name="filled")
    with pytest.raises(error, match=f"`default_id` for 'filled'.*{text}"):
        look_up(v, one_id(1, keys, 1), default_id=default_id)


@LOOK_UPS
@pytest.mark.parametrize(
    ("keys", "default_id"),
    [
        (tf.int64, np.int32(2)),
        (tf.int64, tf.constant(2)),
        (tf.int64, tf.Variable(2)),
        (tf.int32, 2),
        (tf.string, b"2"),
        (tf.string, "2"),
        (tf.string, tf.constant("2")),
    ],
)
def test_a_default_id_may_be_any_key(look_up, keys, default_id):
    v = de.Variable(keys, dim=1, name="filled")
    ids = one_id(2, keys, bags=2)
    v.upsert(ids.values, [[5.0]])
    rows = look_up(v, ids, default_id=default_id)
    assert rows.numpy().tolist() == [[5], [5]]
