"""Checks of input_partition_dims."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfembed import errors
from tfembed.estimator.tpu import input_pipeline

IMAGES = tf.TensorSpec([8, 32, 32, 3])
LABELS = tf.TensorSpec([8])


@pytest.mark.parametrize(
    "dims, features, labels",
    [
        ([[1, 2, 1, 1]], IMAGES, None),
        ([[1, 2, 1, 1], None], IMAGES, LABELS),
        ([[1, 1, 1, 1], [2]], IMAGES, LABELS),
        ([{"x": [1, 1, 2, 1], "y": None}], {"x": IMAGES, "y": LABELS}, None),
        (
            [{"x": None}, {"a": {"b": [2]}, "c": None}],
            {"x": IMAGES},
            {"a": {"b": LABELS}, "c": LABELS},
        ),
        ([([1, 2, 1, 1], None)], (IMAGES, LABELS), None),
    ],
)
def test_dims_that_fit_are_taken(dims, features, labels):
    input_pipeline.check_partitions(dims, features, labels, 2)


@pytest.mark.parametrize(
    "dims, features, labels, text",
    [
        ([[1, 2, 0, 1]], IMAGES, None, "must be >= 1"),
        ([[1, 2, 2, 1]], IMAGES, None, "product of each input partition dim"),
        ([[1, 2, 1]], IMAGES, None, "must have the same number of dimensions"),
        ([{"z": [1]}], {"x": IMAGES}, None, r"dims\[0\] mismatched feature"),
        (
            [{"x": None}, {"z": None}],
            {"x": IMAGES},
            {"y": LABELS},
            r"dims\[1\] mismatched label keys",
        ),
        (
            [{"x": None}, {"a": None, "c": None}],
            {"x": IMAGES},
            {"a": {"b": LABELS}, "c": LABELS},
            r"dims\[1\] mismatched the structure of labels",
        ),
        ([3], IMAGES, None, r"dims\[0\] mismatched the structure of features"),
        (
            [(None,)],
            (IMAGES, LABELS),
            None,
            r"dims\[0\] mismatched the structure",
        ),
    ],
)
def test_dims_that_do_not_fit_are_named(dims, features, labels, text):
    with pytest.raises(errors.ArgumentError, match=text):
        input_pipeline.check_partitions(dims, features, labels, 2)
