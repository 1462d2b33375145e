"""Questions about a table's keys, which are answered without reading a row."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed.tables import HashTable

SHARDS = pytest.mark.parametrize("shards", [1, 3])
IN_FUNCTION = pytest.mark.parametrize("in_function", [False, True])


def filled(shards, keys):
    table = HashTable(2, name="t", devices=["/CPU:0"] * shards)
    table.upsert(keys, np.ones([len(keys), 2], np.float32))
    return table


@SHARDS
@IN_FUNCTION
@pytest.mark.parametrize("n", [0, 1, 5000])
def test_keys_gives_each_key_once(shards, in_function, n):
    present = np.random.default_rng(1).choice(10**9, n, replace=False) - 10**6
    table = filled(shards, present)

    keys = (tf.function(table.keys) if in_function else table.keys)()

    assert keys.dtype == tf.int64
    assert sorted(keys.numpy().tolist()) == sorted(present.tolist())


@SHARDS
@IN_FUNCTION
@pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 3)])
def test_contains_says_which_keys_are_there(shards, in_function, shape):
    table = filled(shards, [0, 1, 2, -5])
    asked = np.arange(np.prod(shape, dtype=int)).reshape(shape)

    contains = tf.function(table.contains) if in_function else table.contains
    exists = contains(asked)

    assert exists.dtype == tf.bool
    np.testing.assert_array_equal(exists, asked <= 2)


@SHARDS
def test_removed_keys_are_no_longer_there(shards):
    table = filled(shards, range(10))
    table.remove(range(0, 10, 2))

    assert sorted(table.keys().numpy().tolist()) == [1, 3, 5, 7, 9]
    assert not table.contains([4]).numpy()[0]


def test_keys_of_another_dtype_are_refused():
    with pytest.raises(TypeError, match="int64"):
        filled(1, [1]).contains(tf.constant([1.0]))
