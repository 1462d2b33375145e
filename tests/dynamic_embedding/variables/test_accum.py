"""`Variable.accum`: deltas for keys that are there, values for keys that are not."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.filled_variables import contents, filled, variable
from tfembed import policies

InvalidArgument = tf.errors.InvalidArgumentError


@pytest.mark.parametrize("shards", [1, 2])
def test_row_27_accum_leaves_keys_alone_where_someone_came_between(shards):
    v = filled(shards=shards)
    keys = tf.constant([0, 1, 100, 3], tf.int64)
    old, exists = v.lookup(keys, return_exists=True)
    v.upsert([100], [[99.0]])
    v.remove(tf.constant([1], tf.int64))

    v.accum(keys, old, [[10.0], [11.0], [100.0], [13.0]], exists)

    assert contents(v) == {0: [10], 2: [2], 3: [13], 100: [99]}


def test_row_30_accum_inserts_what_is_missing_and_was():
    v = variable()
    v.accum([1], [[0.0]], [[5.0]], [False])
    assert contents(v) == {1: [5]}


def test_row_28_accum_of_a_new_key_leaves_one_that_is_there():
    v = filled(keys=[1])
    v.accum([1], [[0.0]], [[5.0]], [False])
    assert contents(v) == {1: [1]}


def test_row_29_accum_of_a_known_key_does_not_bring_it_back():
    v = variable()
    v.accum([1], [[0.0]], [[5.0]], [True])
    assert contents(v) == {}


def test_row_31_accum_counts_each_of_repeated_keys():
    v = variable()
    v.upsert([5], [[1.0]])
    v.accum([5, 5], [[1.0], [1.0]], [[2.0], [3.0]], [True, True])
    assert contents(v) == {5: [4]}


@pytest.mark.parametrize("exists", [[True], [True, True, True]])
def test_row_32_accum_refuses_exists_of_another_length(exists):
    v = filled()
    with pytest.raises(InvalidArgument, match="for exists"):
        v.accum([0, 1], tf.zeros([2, 1]), tf.ones([2, 1]), exists)
    assert contents(v) == contents(filled())


def test_accum_of_strings_to_floats_is_refused():
    v = filled()
    with pytest.raises(ValueError, match="must be numbers"):
        v.accum([0], [["a"]], [["b"]], [True])


NUMBERS = [tf.float32, tf.float64, tf.float16, tf.bfloat16]
NUMBERS += [tf.int8, tf.int32, tf.int64]


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("dim", [1, 8, 64, 70])
@pytest.mark.parametrize("form", ["eager", "function"])
def test_accum_adds_the_difference_of_new_and_old_values(dtype, dim, form):
    random = np.random.default_rng(dim)

    def rows(n):
        return tf.constant(random.integers(-9, 9, [n, dim]), dtype)

    for shards in (1, 3):
        v = de.Variable(
            value_dtype=dtype,
            dim=dim,
            devices=["/CPU:0"] * shards,
            initializer=0,
            name=f"{dtype.name}_{dim}_{form}_{shards}",
        )
        keys = tf.range(20, dtype=tf.int64)
        start, old, new = rows(10), rows(20), rows(20)
        v.upsert(keys[:10], start)
        accum = v.accum if form == "eager" else tf.function(v.accum)
        accum(keys, old, new, keys < 10)
        found = tf.cast(v.lookup(keys), tf.float64).numpy()
        start, old, new = (np.float64(one.numpy()) for one in (start, old, new))
        np.testing.assert_array_equal(found[:10], start + new[:10] - old[:10])
        np.testing.assert_array_equal(found[10:], new[10:])


@pytest.mark.parametrize("shards", [1, 3])
def test_accum_of_old_values_of_another_shape_changes_nothing(shards):
    v = filled(shards=shards)
    with pytest.raises(InvalidArgument, match="for old_values, got"):
        v.accum([0, 1], tf.zeros([1, 1]), tf.ones([2, 1]), [True, True])

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def accum(old):
        v.accum([0, 1], old, tf.ones([2, 1]), [True, True])

    for wrong in (tf.zeros([3, 1]), tf.zeros([2, 2]), tf.zeros([])):
        with pytest.raises(InvalidArgument, match="shape"):
            accum(wrong)
    assert contents(v) == contents(filled())


@pytest.mark.parametrize("shards", [1, 3])
def test_accum_of_a_shard_refuses_what_accum_refuses(shards):
    table = filled(shards=shards).tables[0]
    with pytest.raises(InvalidArgument, match="for exists, got"):
        table.accum([0, 1], tf.ones([2, 1]), [True])
    with pytest.raises(InvalidArgument, match="for value, got"):
        table.accum([0, 1], tf.ones([1, 1]), [True, True])


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.int32])
def test_accum_counts_as_a_use_for_eviction(dtype):
    v = de.Variable(
        value_dtype=dtype,
        dim=2,
        name="noted",
        initializer=0,
        eviction=policies.LeastFrequent(),
        max_size=2,
    )
    v.upsert([1, 2], tf.constant([[1, 1], [2, 2]], dtype))
    old, new = tf.constant([[1, 3]], dtype), tf.constant([[2, 8]], dtype)
    for _ in range(2):
        v.accum([1], old, new, [True])
    v.upsert([3], tf.constant([[3, 3]], dtype))
    rows, exists = v.lookup([1, 2], return_exists=True)
    assert exists.numpy().tolist() == [True, False]
    assert tf.cast(rows[0], tf.int32).numpy().tolist() == [3, 11]


def test_accum_of_differences_rounds_by_chance_where_that_is_asked_for():
    v = de.Variable(
        value_dtype=tf.bfloat16,
        dim=1,
        name="halves",
        initializer=0.0,
        stochastic_rounding=True,
    )
    keys = tf.range(4096, dtype=tf.int64)
    ones = tf.ones([4096, 1], tf.bfloat16)
    v.upsert(keys, ones)
    # 1 + 2^-9 lies a quarter of the way from 1 to the next bfloat16.
    old = tf.fill([4096, 1], tf.constant(2.0**-9, tf.bfloat16))
    v.accum(keys, old, 2 * old, tf.fill([4096], True))
    share = np.mean(np.float64(v.lookup(keys).numpy()) > 1)
    assert 0.2 < share < 0.3
