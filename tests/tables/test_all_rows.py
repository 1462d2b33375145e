"""Rules that move all rows that a table has: non-lazy Adam and Lion."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import optimizers, policies
from tfembed.tables import HashTable

DIM = 3


def make(rule, **arguments):
    table = HashTable(DIM, name="users", initializer=1, **arguments)
    table.attach(rule)
    return table


def train(table, keys):
    gradients = tf.ones([len(keys), DIM])
    table.apply_gradients(tf.constant(keys, table.key_dtype), gradients)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16])
@pytest.mark.parametrize("shards", [1, 2])
def test_rows_that_were_not_looked_up_move_by_their_moments(dtype, shards):
    rule = optimizers.Adam(0.25, 0.5, 0.5, 1e-3, lazy_adam=False)
    table = make(rule, value_dtype=dtype, devices=["/CPU:0"] * shards)
    train(table, [1, 2])
    train(table, [2, 3])
    m = v = 0.5
    first = 1 - 0.25 * m / np.sqrt(v + 1e-6)
    m, v = 0.25, 0.25
    idle = first - 0.25 * m / np.sqrt(v + 1e-6)
    m, v = 0.75, 0.75
    again = first - 0.25 * m / np.sqrt(v + 1e-6)
    rows = table.lookup([1, 2, 3, 4])[0].numpy().astype(np.float32)
    tolerance = 1e-6 if dtype == tf.float32 else 2e-2
    np.testing.assert_allclose(
        rows[:, 0], [idle, again, first, 1.0], rtol=tolerance
    )
    assert table.size().numpy() == 3


def test_rows_of_strings_move_too():
    rule = optimizers.Lion(0.25, 0.5, 0.5, lazy_lion=False)
    table = make(rule, key_dtype=tf.string)
    train(table, ["a"])
    train(table, ["b"])
    rows = table.lookup(tf.constant(["a", "b"]))[0].numpy()
    assert rows[:, 0].tolist() == [0.5, 0.75]


def test_a_row_that_only_moved_is_not_in_use():
    rule = optimizers.Adam(0.25, lazy_adam=False)
    table = make(rule, eviction=policies.LeastRecent(), max_size=2)
    train(table, [1])
    train(table, [2])
    train(table, [2])
    train(table, [3])
    assert sorted(table.keys().numpy().tolist()) == [2, 3]
