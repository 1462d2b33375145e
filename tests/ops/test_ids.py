"""Packed values taken apart: where parts lie, and sizes that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import ops


def address(tensor):
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


@pytest.mark.parametrize("sizes", [[3, 0, 8, 9, 1], [0], [0, 0], [16, 8]])
def test_parts_begin_at_multiples_of_8_and_are_views(sizes):
    values = tf.range(64, dtype=tf.int64)

    parts = ops.split_aligned(values, tf.constant(sizes, tf.int64), len(sizes))

    begin = 0
    for part, size in zip(parts, sizes, strict=True):
        np.testing.assert_array_equal(part, np.arange(begin, begin + size))
        if size:
            assert address(part) == address(values) + 8 * begin
        begin += -(-size // 8) * 8


def test_parts_of_values_that_are_not_aligned_are_copies():
    values = tf.range(64, dtype=tf.int64)
    for first in range(8):

        @tf.function
        def split(values, first):
            return ops.split_aligned(values[first:], [2, 3], 2)

        one, other = split(values, tf.constant(first))
        assert one.numpy().tolist() == [first, first + 1]
        assert other.numpy().tolist() == [first + 8, first + 9, first + 10]
        assert address(other) % 64 == 0


@pytest.mark.parametrize(
    "sizes", [[-1, 2], [17, 0], [9, 1], [1, 9], [2**62] * 2]
)
def test_sizes_that_do_not_fit_are_refused(sizes):
    values = tf.range(16, dtype=tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="pack_features"):
        ops.split_aligned(values[:16], tf.constant(sizes, tf.int64), 2)[1]


@pytest.mark.parametrize(
    ("values", "sizes"), [([[1]], [1, 0]), ([1, 2], [1]), ([1], [[1, 0]])]
)
def test_other_shapes_are_refused(values, sizes):
    values, sizes = tf.constant(values, tf.int64), tf.constant(sizes, tf.int64)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        ops.split_aligned(values, sizes, 2)
