"""Lookups of batches that are more than one block of keys, by keys of all dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed.tables import HashTable

DIM = 3
LONGEST = 40  # Bytes; some lie in their cell, some elsewhere.


def names_of(numbers, dtype):
    """A key for each number."""
    if dtype == tf.string:
        return tf.constant(
            [b"%d" % n + b"\xff" * (n % LONGEST) for n in numbers.tolist()],
            tf.string,
            shape=numbers.shape,
        )
    return tf.constant(numbers - 7000, dtype)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("dtype", [tf.string, tf.int32, tf.int64])
@pytest.mark.parametrize("n", [0, 1, 128, 129, 20_011])
def test_each_key_reads_its_row_or_the_initial_one(n, dtype, shards):
    table = HashTable(
        DIM,
        key_dtype=dtype,
        initializer=0.5,
        devices=["/CPU:0"] * shards,
        name="t",
    )
    there = np.arange(0, 30_000, 2)  # Even numbers.
    rows = np.repeat(there[:, None], DIM, axis=1).astype(np.float32)
    table.upsert(names_of(there, dtype), rows)
    numbers = np.random.default_rng(n).integers(0, 30_000, n)
    values, exists = table.lookup(names_of(numbers, dtype))
    is_there = numbers % 2 == 0
    np.testing.assert_array_equal(exists, is_there)
    expected = np.where(is_there, numbers, 0.5).astype(np.float32)
    np.testing.assert_array_equal(values, np.repeat(expected[:, None], DIM, 1))
