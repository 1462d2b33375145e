"""Lookups and table variables of TPUEmbedding.

Random cases against the oracle are in test_training.py; checkpoint keys in
test_spec_serving.py and test_checkpoint.py.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf

import tfembed

ROWS = np.array([[2.0 * i + 1, 2.0 * i + 2] for i in range(4)], np.float32)
# Sample 0 has ids 1 and 3, sample 1 none, sample 2 id 2 with weight 0.
SPARSE = tf.SparseTensor([[0, 0], [0, 2], [2, 0]], [1, 3, 2], [3, 3])
WEIGHTS = SPARSE.with_values(tf.constant([1.0, 0.5, 0.0]))
RAGGED = tf.ragged.constant([[1, 3], [], [2]])
RAGGED_WEIGHTS = tf.ragged.constant([[1.0, 0.5], [], [0.0]])
ZERO = [0.0, 0.0]


def _rows(shape, dtype):
    return tf.constant(ROWS, dtype)


def _look_up(value, weights=None, *, combiner="mean", **feature):
    """The activations; serving's must be the same."""
    table = tfembed.TableConfig(4, 2, _rows, combiner=combiner, name="users")
    config = tfembed.FeatureConfig(table, **feature)
    embedding = tfembed.TPUEmbedding(config, tfembed.SGD(1.0))
    embedding.enqueue(value, weights, training=False)
    activations = embedding.dequeue()
    is_sequence = config.max_sequence_length > 0
    if not (is_sequence and weights is not None):
        served = tfembed.serving_embedding_lookup(
            value, weights, embedding.embedding_tables, config
        )
        np.testing.assert_allclose(served, activations, 1e-6)
    return activations.numpy()


COMBINED = [("sum", 1.0), ("mean", 1.5), ("sqrtn", np.sqrt(1.25))]


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize(
    ("value", "weights"), [(SPARSE, WEIGHTS), (RAGGED, RAGGED_WEIGHTS)]
)
@pytest.mark.parametrize(("combiner", "divisor"), COMBINED)
def test_combiners_with_weights_and_zero_for_empty_rows_and_zero_weights(
    combiner, divisor, value, weights, validate
):
    first = (ROWS[1] + 0.5 * ROWS[3]) / divisor
    result = _look_up(
        value, weights, combiner=combiner, validate_weights_and_indices=validate
    )
    np.testing.assert_allclose(result, [first, ZERO, ZERO], 1e-6)


@pytest.mark.parametrize("value", [SPARSE, RAGGED], ids=["sparse", "ragged"])
@pytest.mark.parametrize(
    ("combiner", "divisor"), [("sum", 1), ("mean", 2), ("sqrtn", np.sqrt(2))]
)
def test_weights_are_1_without_weights(combiner, divisor, value):
    result = _look_up(value, combiner=combiner)
    np.testing.assert_allclose(result[0], (ROWS[1] + ROWS[3]) / divisor, 1e-6)


def test_dense_input_has_no_combiner():
    for combiner in ("sum", "mean", "sqrtn"):
        result = _look_up(tf.constant([1, 3]), combiner=combiner)
        assert result.tolist() == ROWS[[1, 3]].tolist()


TWO = tf.SparseTensor([[0, 0], [0, 1]], [1, 2], [1, 2])
MINUS = TWO.with_values([-1.0, 3.0])


def test_validation_prunes_weights_of_0_or_less_unless_summed():
    assert _look_up(TWO, MINUS).tolist() == [ROWS[2].tolist()]
    np.testing.assert_allclose(
        _look_up(TWO, MINUS, combiner="sum"), [-ROWS[1] + 3 * ROWS[2]], 1e-6
    )


def test_without_validation_negative_weights_are_kept():
    result = _look_up(TWO, MINUS, validate_weights_and_indices=False)
    np.testing.assert_allclose(result, [(-ROWS[1] + 3 * ROWS[2]) / 2], 1e-6)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_validation_always_prunes_ids_below_0(combiner):
    value = TWO.with_values([-1, 2])
    assert _look_up(value, combiner=combiner).tolist() == [ROWS[2].tolist()]


def test_above_rank_2_sparse_input_is_always_validated():
    value = tf.sparse.reshape(TWO.with_values([-1, 2]), [1, 1, 2])
    result = _look_up(value, validate_weights_and_indices=False)
    assert result.tolist() == [[ROWS[2].tolist()]]


def test_ragged_input_is_never_pruned():
    value = tf.ragged.constant([[1, 2]])
    weights = value.with_values([-1.0, 3.0])
    result = _look_up(value, weights)
    np.testing.assert_allclose(result, [(-ROWS[1] + 3 * ROWS[2]) / 2], 1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError):
        _look_up(value.with_values([-1, 2]))


def test_an_id_beyond_the_vocabulary_is_invalid():
    for value in (tf.constant([4]), TWO.with_values([4, 1])):
        with pytest.raises(tf.errors.InvalidArgumentError):
            _look_up(value)


def test_sparse_sequences_keep_columns_and_holes_and_are_cut():
    result = _look_up(SPARSE, max_sequence_length=3)
    assert result.shape == (3, 3, 2)
    assert result[0].tolist() == [ROWS[1].tolist(), ZERO, ROWS[3].tolist()]
    assert _look_up(SPARSE, max_sequence_length=2)[0].tolist() == [
        ROWS[1].tolist(),
        ZERO,
    ]


def test_ragged_sequences_are_cut_and_padded_with_zeros():
    result = _look_up(RAGGED, max_sequence_length=3)
    assert result[0].tolist() == [*ROWS[[1, 3]].tolist(), ZERO]
    assert _look_up(RAGGED, max_sequence_length=1)[0].tolist() == [
        ROWS[1].tolist()
    ]


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_sequences_are_not_combined(combiner):
    for value in (SPARSE, RAGGED):
        result = _look_up(value, max_sequence_length=1, combiner=combiner)
        assert result[:, 0].tolist() == [
            ROWS[1].tolist(),
            ZERO,
            ROWS[2].tolist(),
        ]


def test_sparse_input_above_rank_2_ignores_the_sequence_length_and_warns(
    caplog,
):
    value = tf.sparse.reshape(SPARSE, [1, 3, 3])
    with caplog.at_level(logging.WARNING, logger="tfembed"):
        result = _look_up(value, max_sequence_length=2, combiner="sum")
    assert "max_sequence_length=2 is ignored" in caplog.text
    assert result.shape == (1, 3, 2)
    assert result[0, 0].tolist() == (ROWS[1] + ROWS[3]).tolist()


@pytest.mark.parametrize(
    ("value", "weights"), [(SPARSE, WEIGHTS), (RAGGED, RAGGED_WEIGHTS)]
)
def test_tpu_embedding_accepts_weights_on_sequences(value, weights):
    result = _look_up(value, weights, max_sequence_length=2)
    assert result.shape == (3, 2, 2)


def test_a_ragged_output_shape_of_the_batch_combines_and_reshapes():
    result = _look_up(RAGGED, output_shape=[3, 1], combiner="sum")
    assert result[0, 0].tolist() == (ROWS[1] + ROWS[3]).tolist()


def test_a_ragged_output_shape_of_a_multiple_makes_sequences():
    result = _look_up(RAGGED, output_shape=[3, 2])
    assert result[0].tolist() == ROWS[[1, 3]].tolist()
    assert result[2].tolist() == [ROWS[2].tolist(), ZERO]


def test_a_gradient_of_a_sequence_goes_to_the_ids_that_were_kept():
    table = tfembed.TableConfig(4, 2, _rows, name="users")
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table, max_sequence_length=1), tfembed.SGD(1.0)
    )
    embedding.enqueue(SPARSE)
    embedding.apply_gradients(tf.ones_like(embedding.dequeue()))
    moved = ROWS - embedding.embedding_tables[table].numpy()
    assert moved[:, 0].tolist() == [0.0, 1.0, 1.0, 0.0]


# 1.5: variables.


def _one(initializer=None, optimizer=None):
    table = tfembed.TableConfig(64, 16, initializer, name="users")
    return table, tfembed.TPUEmbedding(tfembed.FeatureConfig(table), optimizer)


def test_the_default_initializer_is_a_truncated_normal_of_1_over_root_dim():
    table, embedding = _one()
    rows = embedding.embedding_tables[table].numpy()
    assert np.std(rows) == pytest.approx(0.88 / 4, rel=0.1)
    assert np.abs(rows).max() <= 2 / 4


def test_a_table_is_a_float32_variable_of_vocabulary_and_dim():
    table, embedding = _one()
    variable = embedding.embedding_tables[table]
    assert (variable.shape, variable.dtype) == ([64, 16], tf.float32)


def test_tables_are_trainable_and_slots_never():
    _, embedding = _one(optimizer=tfembed.Adam(0.1))
    made = embedding._variables["users"]
    assert {k: v.trainable for k, v in made.items()} == {
        "parameters": True,
        "momenta": False,
        "velocities": False,
    }


def test_an_initializer_is_called_with_shape_and_dtype():
    seen = []

    def initializer(shape, dtype):
        seen.append((tuple(shape), dtype))
        return tf.zeros(shape, dtype)

    _one(initializer)[1].build()
    assert seen == [((64, 16), tf.float32)]


@pytest.mark.parametrize(
    "initializer",
    [
        tf.keras.initializers.Constant(2.0),
        tf.constant_initializer(2.0),
        tf.compat.v1.constant_initializer(2.0),
    ],
)
def test_initializers_of_keras_and_tensorflow_are_taken(initializer):
    table, embedding = _one(initializer)
    assert (embedding.embedding_tables[table].numpy() == 2.0).all()


def test_a_keras_initializer_class_is_refused_and_says_so():
    """TensorFlow's fails with a confusing error about arguments."""
    with pytest.raises(ValueError, match="instance"):
        tfembed.TableConfig(4, 2, tf.keras.initializers.Zeros)


def test_ragged_sequences_of_an_output_shape_have_no_weights():
    table = tfembed.TableConfig(4, 1, tf.ones_initializer(), name="t")
    feature = tfembed.FeatureConfig(table, output_shape=[2, 2])
    embedding = tfembed.TPUEmbedding(feature, tfembed.SGD(1.0))
    ids = tf.ragged.constant([[1, 3], [2]])
    weights = ids.with_values([5.0, 5.0, 5.0])
    served = tfembed.serving_embedding_lookup(
        ids, weights, embedding.embedding_tables, feature
    )
    embedding.enqueue(ids, weights)
    activations = embedding.dequeue()
    np.testing.assert_array_equal(activations, served)
    assert activations.numpy().tolist() == [[[1], [1]], [[1], [0]]]
    embedding.apply_gradients(tf.ones([2, 2, 1]))
    rows = embedding.embedding_tables[table].numpy()
    assert rows.ravel().tolist() == [1, 0, 0, 0]


def test_ids_below_0_are_dropped_whichever_batch_has_the_first_one():
    rows = tf.constant([[1.0], [2.0], [4.0], [8.0]])
    table = tfembed.TableConfig(
        4, 1, lambda shape, dtype: rows, combiner="sum", name="t"
    )
    other = tfembed.TableConfig(4, 1, tf.ones_initializer(), name="other")
    embedding = tfembed.TPUEmbedding(
        [tfembed.FeatureConfig(table), tfembed.FeatureConfig(other)],
        None,
        engine="host",
    )

    @tf.function(reduce_retracing=True)
    def look(ids, dense):
        embedding.enqueue([ids, dense], training=False)
        return embedding.dequeue()

    def of(*ids):
        value = tf.SparseTensor([[0, i] for i in range(len(ids))], ids, [1, 4])
        return look(value, tf.constant([0]))[0].numpy().tolist()

    def refuse(*ids, dense=0):
        value = tf.SparseTensor([[0, i] for i in range(len(ids))], ids, [1, 4])
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            look(value, tf.constant([dense]))
        embedding.reset_steps()
        return str(raised.value)

    assert of(0, 1) == [[3]]
    assert "id 4 " in refuse(0, 4)
    assert "id -1 " in refuse(0, 1, dense=-1)
    assert "id -1 " in refuse(0, -3, dense=-1)
    assert of(0, -1, 2) == [[5]]
    assert of(-1) == [[0]]
    assert of(0, 3) == [[9]]
    assert "id 4 " in refuse(-1, 4)
