"""A missing key reads the initializer's row, or the default row."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.filled_variables import variable


def test_row_34_missing_rows_of_a_constant_are_that_constant():
    rows = variable(10).lookup(np.arange(2**17)).numpy()
    assert rows.mean() == -1
    assert rows.std() == 0


def test_rows_35_and_36_missing_rows_have_the_initializers_moments():
    v = de.Variable(
        dim=10, initializer=tf.keras.initializers.RandomNormal(0.0, 0.01)
    )
    rows = v.lookup(np.arange(2**17)).numpy()
    assert abs(rows.mean()) < 5 * 0.01 / np.sqrt(rows.size)
    assert rows.std() == pytest.approx(0.01, rel=0.01)
    assert int(v.size()) == 0


@pytest.mark.parametrize("shards", [1, 3])
def test_row_37_a_missing_row_depends_on_its_key_alone(shards):
    v = variable(4, tf.keras.initializers.RandomNormal(seed=3), shards)
    one = variable(4, tf.keras.initializers.RandomNormal(seed=3))

    rows = v.lookup([7, 8, 7]).numpy()

    np.testing.assert_array_equal(rows[0], rows[2])
    assert not np.array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(v.lookup([8])[0], rows[1])
    np.testing.assert_array_equal(one.lookup([7, 8, 7]), rows)


@pytest.mark.parametrize(
    ("given", "row"),
    [
        (np.array([1, 2, 3, 4]), [1, 2, 3, 4]),
        (np.array([-1]), [-1] * 4),
        (tf.constant(-1.0), [-1] * 4),
        (lambda: 3.0, [3] * 4),
        (tf.keras.initializers.Constant(2.5), [2.5] * 4),
        (None, [0] * 4),
    ],
)
def test_rows_39_and_40_initializers_give_the_missing_row(given, row):
    np.testing.assert_array_equal(variable(4, given).lookup([9]), [row])
