"""The spec's acceptance rows on `Variable.accum`: 27 to 32."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.dynamic_embedding.filled_variables import contents, filled, variable

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
