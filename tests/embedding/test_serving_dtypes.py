"""Serving_embedding_lookup in tables that are not of float32."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors

ROWS = tf.constant([[2.0 * i + 1, 2.0 * i + 2] for i in range(4)])
RAGGED = tf.ragged.constant([[1, 3], [], [2]])
RAGGED_WEIGHTS = tf.ragged.constant([[1.0, 0.5], [], [0.0]])
SPARSE = RAGGED.to_sparse()


def _look_up(value, weights=None, *, combiner="mean", table):
    config = tfembed.TableConfig(4, 2, combiner=combiner, name="users")
    return tfembed.serving_embedding_lookup(
        value, weights, {config: table}, tfembed.FeatureConfig(config)
    ).numpy()


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(tf.bfloat16, 2e-2), (tf.float16, 2e-3), (tf.float64, 1e-12)],
)
@pytest.mark.parametrize(
    ("value", "feature"),
    [
        (tf.constant([1, 3]), {}),
        (SPARSE, {}),
        (SPARSE, {"validate_weights_and_indices": False}),
        (SPARSE, {"max_sequence_length": 2}),
        (RAGGED, {}),
        (RAGGED, {"max_sequence_length": 2}),
    ],
)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_activations_and_gradients_have_the_tables_dtype_as_tensorflows(
    combiner, value, feature, dtype, tolerance
):
    found = []
    for configs in (tfembed, tf.tpu.experimental.embedding):
        config = configs.TableConfig(4, 2, combiner=combiner, name="users")
        table = tf.Variable(tf.cast(ROWS, dtype))
        with tf.GradientTape() as tape:
            activations = configs.serving_embedding_lookup(
                value,
                None,
                {config: table},
                configs.FeatureConfig(config, **feature),
            )
            loss = tf.reduce_sum(activations**2)
        gradient = tf.convert_to_tensor(tape.gradient(loss, table))
        assert activations.dtype == gradient.dtype == dtype
        found.append([tf.cast(x, tf.float64) for x in (activations, gradient)])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, tolerance)


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_narrow_rows_are_summed_in_float32(kind):
    """In bfloat16 the sum of ones stays at 256."""
    value = tf.RaggedTensor.from_row_splits([0] * 1000, [0, 1000])
    weights = value.with_values(tf.ones([1000], tf.float64))
    if kind == "sparse":
        value, weights = value.to_sparse(), weights.to_sparse()
    table = tf.ones([4, 2], tf.bfloat16)
    for of_ids in (None, weights):
        result = _look_up(value, of_ids, combiner="sum", table=table)
        assert result.tolist() == [[1000.0, 1000.0]]


def test_rows_of_float64_are_summed_in_float64():
    table = tf.fill([4, 2], tf.constant(1 + 1e-12, tf.float64))
    assert _look_up(RAGGED, RAGGED_WEIGHTS, table=table)[0, 0] == 1 + 1e-12


def test_rows_that_are_no_floats_are_not_combined():
    table = tf.ones([4, 2], tf.int32)
    assert _look_up(tf.constant([1]), table=table).tolist() == [[1, 1]]
    with pytest.raises(errors.DtypeError, match="floats.*'mean'; got int32"):
        _look_up(RAGGED, table=table)
