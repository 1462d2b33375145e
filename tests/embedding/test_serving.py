"""Serving_embedding_lookup: TensorFlow's semantics, with its bugs put right."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import marks, steps
from property import cases
from tfembed import errors

ROWS = tf.constant([[2.0 * i + 1, 2.0 * i + 2] for i in range(4)])
# Sample 0 has ids 1 and 3, sample 1 none, sample 2 id 2 with weight 0.
SPARSE = tf.SparseTensor([[0, 0], [0, 2], [2, 0]], [1, 3, 2], [3, 3])
WEIGHTS = SPARSE.with_values(tf.constant([1.0, 0.5, 0.0]))
RAGGED = tf.ragged.constant([[1, 3], [], [2]])
RAGGED_WEIGHTS = tf.ragged.constant([[1.0, 0.5], [], [0.0]])
W = np.array([1.0, 0.5])
IDS = ROWS.numpy()[[1, 3]]


def _look_up(value, weights=None, *, combiner="mean", table=ROWS, **feature):
    config = tfembed.TableConfig(4, 2, combiner=combiner, name="users")
    return tfembed.serving_embedding_lookup(
        value,
        weights,
        {config: table},
        tfembed.FeatureConfig(config, **feature),
    ).numpy()


COMBINED = [
    ("sum", W @ IDS),
    ("mean", W @ IDS / W.sum()),
    ("sqrtn", W @ IDS / np.sqrt(W @ W)),
]


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize(
    ("value", "weights"), [(SPARSE, WEIGHTS), (RAGGED, RAGGED_WEIGHTS)]
)
@pytest.mark.parametrize(("combiner", "first"), COMBINED)
def test_samples_are_combined_and_empty_ones_are_zero(
    combiner, first, value, weights, validate
):
    result = _look_up(
        value, weights, combiner=combiner, validate_weights_and_indices=validate
    )
    np.testing.assert_allclose(result, [first, [0, 0], [0, 0]], 1e-6)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_sparse_lookups_agree_with_tensorflows(combiner, weights):
    theirs = tf.tpu.experimental.embedding
    config = theirs.TableConfig(4, 2, combiner=combiner, name="users")
    expected = theirs.serving_embedding_lookup(
        SPARSE,
        weights,
        {config: tf.Variable(ROWS)},
        theirs.FeatureConfig(config),
    )
    np.testing.assert_allclose(
        _look_up(SPARSE, weights, combiner=combiner), expected, 1e-6
    )


@pytest.mark.parametrize("ids", [[1, 3], [[1], [3]]])
def test_dense_ids_give_a_row_each(ids):
    assert _look_up(tf.constant(ids)).tolist() == IDS.tolist()


def test_ids_below_zero_are_pruned_where_validated():
    value = tf.SparseTensor([[0, 0], [0, 1]], [-1, 1], [1, 2])
    assert _look_up(value).tolist() == [[3.0, 4.0]]
    with pytest.raises(tf.errors.InvalidArgumentError):
        _look_up(value, validate_weights_and_indices=False)


def test_weights_below_zero_are_pruned_unless_summed():
    value = tf.SparseTensor([[0, 0], [0, 1]], [1, 2], [1, 2])
    weights = value.with_values([-1.0, 3.0])
    assert _look_up(value, weights).tolist() == [[5.0, 6.0]]
    assert _look_up(value, weights, combiner="sum").tolist() == [[12.0, 14.0]]
    unchecked = _look_up(value, weights, validate_weights_and_indices=False)
    assert unchecked.tolist() == [[6.0, 7.0]]


def test_an_id_at_the_vocabulary_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError):
        _look_up(tf.constant([4]))


@pytest.mark.parametrize("table", [ROWS, tf.Variable(ROWS)])
def test_sequences_keep_places_and_are_cut_and_padded(table):
    row = ROWS.numpy().tolist()
    zero = [0.0, 0.0]
    sparse = _look_up(SPARSE, table=table, max_sequence_length=2)
    assert sparse.tolist() == [[row[1], zero], [zero, zero], [row[2], zero]]
    ragged = _look_up(RAGGED, table=table, max_sequence_length=1)
    assert ragged.tolist() == [[row[1]], [zero], [row[2]]]
    padded = _look_up(RAGGED, table=table, max_sequence_length=3)
    assert padded[0].tolist() == [row[1], row[3], zero]


def test_a_ragged_output_shape_combines_or_makes_sequences():
    combined = _look_up(RAGGED, output_shape=[3, 1])
    assert combined.shape == (3, 1, 2)
    assert combined[0, 0].tolist() == [5.0, 6.0]
    sequences = _look_up(RAGGED, output_shape=[3, 2])
    assert sequences[0].tolist() == IDS.tolist()
    assert not sequences[1].any()
    with pytest.raises(
        errors.ArgumentError,
        match="FeatureConfig should be the factor of the input",
    ):
        _look_up(RAGGED, output_shape=[4])


def test_sparse_input_of_higher_rank_keeps_its_dimensions():
    value = tf.sparse.reshape(SPARSE, [1, 3, 3])
    assert _look_up(value).tolist() == [_look_up(SPARSE).tolist()]


def test_some_of_the_features_may_be_looked_up():
    config = tfembed.TableConfig(4, 2, name="users")
    features = {name: tfembed.FeatureConfig(config) for name in ("a", "b")}
    result = tfembed.serving_embedding_lookup(
        {"b": tf.constant([1])}, None, {config: ROWS}, features
    )
    assert list(result) == ["b"]
    with pytest.raises(errors.ArgumentError, match="'c'"):
        tfembed.serving_embedding_lookup(
            {"c": tf.constant([1])}, None, {config: ROWS}, features
        )


WRONG = [
    (3, None, {}, "is type.*int"),
    (tf.constant([1]), tf.constant([1.0]), {}, "input is dense"),
    (SPARSE, RAGGED_WEIGHTS, {}, "does not match type"),
    (
        SPARSE,
        WEIGHTS,
        {"max_sequence_length": 2},
        "this is a sequence feature",
    ),
    (
        tf.constant([1]),
        None,
        {"max_sequence_length": 2},
        "sequence feature but a dense tensor",
    ),
    (tf.ragged.constant([[[1]]]), None, {}, "Only rank 2 ragged"),
]


@pytest.mark.parametrize(("value", "weights", "feature", "text"), WRONG)
def test_wrong_inputs_are_refused(value, weights, feature, text):
    with pytest.raises(errors.ArgumentError, match=text):
        _look_up(value, weights, **feature)


def test_ids_that_are_not_integers_are_refused():
    with pytest.raises(errors.DtypeError, match="float32"):
        _look_up(tf.constant([1.0]))


def test_a_missing_table_is_named_by_an_error_of_tensorflows_type():
    config = tfembed.TableConfig(4, 2, name="users")
    with pytest.raises(
        errors.ArgumentError, match=r"^`tables` has.*'users'"
    ) as caught:
        tfembed.serving_embedding_lookup(
            tf.constant([1]), None, {}, tfembed.FeatureConfig(config)
        )
    assert isinstance(caught.value, KeyError)


@pytest.mark.parametrize(
    "vocabulary", [cases.VOCABULARY, pytest.param(None, marks=marks.GROWS)]
)
def test_serving_equals_training(vocabulary):
    embedding = tfembed.TPUEmbedding(
        steps.configs(vocabulary=vocabulary), tfembed.Adagrad(0.5)
    )
    config = embedding._plan.feature_config
    rng = np.random.default_rng(3)
    for _ in range(3):
        step = steps.draw_step(rng)
        features, weights = step.inputs()
        embedding.enqueue(features, weights)
        trained = embedding.dequeue()
        served = tf.function(
            lambda f, w: tfembed.serving_embedding_lookup(
                f, w, embedding.embedding_tables, config
            )
        )(features, weights)
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6),
            trained,
            served,
        )
        embedding.apply_gradients(step.structured_gradients())


@pytest.mark.parametrize("value", [SPARSE, RAGGED, tf.constant([1, 1])])
def test_a_tape_sees_sparse_gradients_of_a_variable(value):
    config = tfembed.TableConfig(4, 2, name="users", combiner="sum")
    table = tf.Variable(ROWS)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(
            tfembed.serving_embedding_lookup(
                value, None, {config: table}, tfembed.FeatureConfig(config)
            )
        )
    gradient = tape.gradient(loss, table)
    assert isinstance(gradient, tf.IndexedSlices)
    dense = tf.convert_to_tensor(gradient).numpy()[:, 0].tolist()
    assert dense == ([0, 2, 0, 0] if value.shape == [2] else [0, 1, 1, 1])
