"""TPUEmbeddingV0's lookups, feature by feature."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import v0
from tfembed import errors

COMBINED = [("sum", 1.0), ("mean", 1.5), ("sqrtn", np.sqrt(1.25))]


@pytest.mark.parametrize(
    ("value", "weights"),
    [(v0.SPARSE, v0.WEIGHTS), (v0.RAGGED, v0.RAGGED_WEIGHTS)],
)
@pytest.mark.parametrize(("combiner", "divisor"), COMBINED)
def test_samples_that_are_empty_or_without_weight_are_zero(
    combiner, divisor, value, weights
):
    first = (v0.ROWS[1] + 0.5 * v0.ROWS[3]) / divisor
    result = v0.look_up(value, weights, combiner=combiner)
    np.testing.assert_allclose(result, [first, v0.ZERO, v0.ZERO], 1e-6)


def test_ids_are_not_pruned_and_minus_one_is_an_error():
    value = tf.SparseTensor([[0, 0], [0, 1]], [-1, 1], [1, 2])
    with pytest.raises(tf.errors.InvalidArgumentError):
        v0.look_up(value)


def test_weights_below_zero_are_not_pruned():
    value = tf.SparseTensor([[0, 0], [0, 1]], [1, 2], [1, 2])
    weights = value.with_values([-1.0, 3.0])
    assert v0.look_up(value, weights).tolist() == [[6.0, 7.0]]


def test_large_sparse_input_is_not_made_dense():
    """A dense matrix of these samples would take 16 TB."""
    value = tf.SparseTensor(
        [[0, 0], [2**20, 2**21]], [1, 3], [2**20 + 1, 2**21 + 1]
    )
    assert (
        v0.look_up(value, combiner="sum")[2**20].tolist() == v0.ROWS[3].tolist()
    )


def test_sparse_sequences_are_cut_and_padded_with_zeros():
    result = v0.look_up(v0.SPARSE, max_sequence_length=2)
    assert result.tolist() == [
        [v0.ROWS[1].tolist(), v0.ZERO],
        [v0.ZERO, v0.ZERO],
        [v0.ROWS[2].tolist(), v0.ZERO],
    ]
    longer = v0.look_up(v0.SPARSE, max_sequence_length=5)
    assert longer[0, 2].tolist() == v0.ROWS[3].tolist()
    assert longer.shape == (3, 5, 2)


def test_ragged_sequences_are_padded_with_zeros_and_not_with_row_0():
    """TensorFlow's pads them with row 0: a known bug."""
    result = v0.look_up(v0.RAGGED, max_sequence_length=3)
    assert result[0].tolist() == [*v0.ROWS[[1, 3]].tolist(), v0.ZERO]
    assert not result[1].any()


@pytest.mark.parametrize("shape", [[3, 3], [3]])
def test_sparse_sequences_are_sequences_beside_an_output_shape_too(shape):
    """TensorFlow's ignores max_sequence_length then: a known bug."""
    result = v0.look_up(v0.SPARSE, max_sequence_length=3, output_shape=shape)
    assert result.shape == (3, 3, 2)
    assert result[2].tolist() == [v0.ROWS[2].tolist(), v0.ZERO, v0.ZERO]


@pytest.mark.parametrize("shape", [[3], [3, 1], [3, 4], [4]])
def test_an_output_shape_of_sparse_input_is_unused(shape):
    result = v0.look_up(v0.SPARSE, output_shape=shape, combiner="sum")
    assert result.shape == (3, 2)
    assert result[0].tolist() == (v0.ROWS[1] + v0.ROWS[3]).tolist()


def test_sparse_input_of_an_unknown_batch_size_may_have_an_output_shape():
    embedding = v0.embedding(output_shape=[3])
    specs = [tf.SparseTensorSpec([None, None], tf.int32)]
    result = tf.function(embedding, input_signature=specs)(v0.SPARSE)
    assert result.numpy().tolist() == v0.look_up(v0.SPARSE).tolist()


def test_a_ragged_output_shape_of_the_batch_combines_and_reshapes():
    result = v0.look_up(v0.RAGGED, output_shape=[3, 1], combiner="sum")
    assert result.shape == (3, 1, 2)
    assert result[0, 0].tolist() == (v0.ROWS[1] + v0.ROWS[3]).tolist()


def test_a_ragged_output_shape_makes_sequences():
    result = v0.look_up(v0.RAGGED, output_shape=[3, 3])
    assert result.shape == (3, 3, 2)
    assert result[2].tolist() == [v0.ROWS[2].tolist(), v0.ZERO, v0.ZERO]


def test_a_ragged_output_shape_that_the_batch_does_not_divide_is_refused():
    with pytest.raises(
        errors.ArgumentError,
        match="FeatureConfig should be the factor of the input",
    ):
        v0.look_up(v0.RAGGED, output_shape=[4])


def test_an_output_shape_is_evaluated_in_a_function_too():
    embedding = v0.embedding(output_shape=[3, 2])
    result = tf.function(lambda: embedding(v0.RAGGED))()
    assert result.shape == [3, 2, 2]


def test_sparse_input_above_rank_2_combines_its_last_dimension():
    value = tf.sparse.reshape(v0.SPARSE, [1, 3, 3])
    assert v0.look_up(value).tolist() == [v0.look_up(v0.SPARSE).tolist()]


@pytest.mark.parametrize(
    "shape", [[2], [2, 1], [1, 2, 1]], ids=lambda s: f"rank{len(s)}"
)
def test_dense_input_keeps_all_dimensions(shape):
    ids = tf.reshape(tf.constant([1, 3]), shape)
    result = v0.look_up(ids)
    assert result.shape == (*shape, 2)
    assert result.reshape([2, 2]).tolist() == v0.ROWS[[1, 3]].tolist()


WRONG = [
    (tf.constant([1]), tf.constant([1.0]), {}, "Weight specified for .*dense"),
    (v0.SPARSE, v0.RAGGED_WEIGHTS, {}, "does not match type of the input"),
    (
        v0.SPARSE,
        v0.WEIGHTS,
        {"max_sequence_length": 2},
        "this is a sequence feature",
    ),
    (
        tf.constant([1]),
        None,
        {"max_sequence_length": 2},
        "sequence feature but a dense tensor was passed",
    ),
    (3, None, {}, "Tensor, SparseTensor or RaggedTensor expected"),
    (tf.ragged.constant([[[1]]]), None, {}, "Only rank 2 ragged"),
]


@pytest.mark.parametrize(("value", "weights", "feature", "text"), WRONG)
def test_an_error_row_is_a_value_error_that_names_the_feature(
    value, weights, feature, text
):
    with pytest.raises(ValueError, match=text) as raised:
        v0.look_up(value, weights, **feature)
    assert "the only feature" in str(raised.value)


def test_an_unknown_combiner_is_a_value_error():
    table = v0.THEIRS.TableConfig(4, 2, v0.rows, name="users")
    table.combiner = "max"
    with pytest.raises(ValueError, match="max"):
        tfembed.TPUEmbeddingV0(v0.THEIRS.FeatureConfig(table), None)


def test_a_structure_that_does_not_match_is_refused():
    with pytest.raises((ValueError, TypeError), match="features must have"):
        v0.look_up([tf.constant([1])])
    with pytest.raises((ValueError, TypeError), match="weights must have"):
        v0.look_up(v0.SPARSE, [None])
