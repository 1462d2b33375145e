"""CustomCombiner: a sample's rows combined by a user's function."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors, optimizers
from tfembed.config import CustomCombiner, FeatureConfig, TableConfig

THEIRS = tf.tpu.experimental.embedding
HAS_THEIRS = hasattr(THEIRS, "CustomCombiner")
ROWS = np.arange(1.0, 13.0, dtype=np.float32).reshape(6, 2)


def rows(shape, dtype):
    return tf.constant(ROWS, dtype)


def total(valency, vectors):
    inside = tf.range(tf.shape(vectors)[0]) < valency
    return tf.reduce_sum(tf.where(inside[:, None], vectors, 0.0), axis=0)


def mean(valency, vectors):
    return tf.reduce_sum(vectors, axis=0) / tf.cast(valency, tf.float32)


def weighted(valency, vectors, weights):
    del valency
    return tf.reduce_sum(vectors * weights[:, None], axis=0)


def weighted_combiner(rate=0.5):
    return CustomCombiner(
        weighted, 3, 3, tf.constant_initializer([1.0, 2.0, 3.0]), rate
    )


def make(combiner, optimizer=None, vocabulary=6, **arguments):
    initializer = rows if vocabulary else tf.constant_initializer(1.0)
    table = TableConfig(
        vocabulary, 2, initializer, combiner=combiner, name="users"
    )
    feature = FeatureConfig(table, **arguments)
    return tfembed.TPUEmbedding(feature, optimizer or optimizers.SGD(1.0))


def sparse(samples):
    return tf.RaggedTensor.from_row_splits(
        tf.constant([i for s in samples for i in s], tf.int64),
        np.cumsum([0, *map(len, samples)]),
    ).to_sparse()


def ragged(samples):
    return tf.ragged.constant(samples, dtype=tf.int64)


def step(embedding, ids, gradient):
    embedding.enqueue(ids)
    activations = embedding.dequeue()
    embedding.apply_gradients(tf.constant(gradient, tf.float32))
    return activations.numpy()


@pytest.mark.parametrize("kind", [sparse, ragged])
def test_the_function_combines_and_its_gradient_trains(kind):
    embedding = make(CustomCombiner(mean, 3))
    ids = kind([[0, 2], [], [5], [1, 1, 2]])
    gradient = [[2.0, 4.0], [9.0, 9.0], [1.0, 1.0], [3.0, 6.0]]
    got = step(embedding, ids, gradient)
    expected = [ROWS[[0, 2]].mean(0), [0, 0], ROWS[5], ROWS[[1, 1, 2]].mean(0)]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    table = embedding._variables["users"]["parameters"].numpy()
    moved = np.zeros_like(ROWS)
    moved[0] = [1, 2]
    moved[1] = [2, 4]
    moved[2] = [1 + 1, 2 + 2]
    moved[5] = [1, 1]
    np.testing.assert_allclose(table, ROWS - moved, rtol=1e-6)


def test_ids_behind_max_valency_are_dropped_and_not_trained():
    embedding = make(CustomCombiner(total, 2))
    got = step(embedding, ragged([[0, 1, 2, 3], [4]]), [[1.0, 1.0]] * 2)
    np.testing.assert_allclose(got, [ROWS[0] + ROWS[1], ROWS[4]])
    table = embedding._variables["users"]["parameters"].numpy()
    assert (table - ROWS)[:, 0].tolist() == [-1, -1, 0, 0, -1, 0]


def test_vectors_come_in_the_order_of_the_input():
    def first(valency, vectors):
        del valency
        return vectors[0]

    embedding = make(CustomCombiner(first, 4))
    got = step(embedding, ragged([[3, 1], [1, 3]]), [[0.0, 0.0]] * 2)
    np.testing.assert_array_equal(got, ROWS[[3, 1]])


def test_weights_are_trained_by_gradient_descent():
    embedding = make(weighted_combiner(), optimizers.SGD(0.0))
    got = step(embedding, ragged([[0, 2], [1]]), [[1.0, 1.0], [2.0, 0.0]])
    expected = [ROWS[0] + 2 * ROWS[2], ROWS[1]]
    np.testing.assert_allclose(got, expected)
    # dL/dw_k = sum over samples of <vector k, upstream>.
    slope = [ROWS[0].sum() + 2 * ROWS[1, 0], ROWS[2].sum(), 0.0]
    got = step(embedding, ragged([[0], [0]]), [[0.0, 0.0]] * 2)
    weights = np.array([1.0, 2.0, 3.0]) - 0.5 * np.array(slope)
    np.testing.assert_allclose(got, [weights[0] * ROWS[0]] * 2, rtol=1e-6)


def test_a_callable_rate_of_the_weights_is_asked_in_each_step():
    calls = []

    def rate():
        calls.append(1)
        return 0.5

    embedding = make(weighted_combiner(rate))
    for _ in range(2):
        step(embedding, ragged([[0]]), [[1.0, 1.0]])
    assert len(calls) == 2


def test_the_weights_are_saved_and_restored(tmp_path):
    embedding = make(weighted_combiner())
    step(embedding, ragged([[0]]), [[1.0, 1.0]])
    path = tf.train.Checkpoint(embedding=embedding).save(str(tmp_path / "c"))
    restored = make(weighted_combiner())
    tf.train.Checkpoint(embedding=restored).restore(path)
    got, expected = (
        step(one, ragged([[0]]), [[0.0, 0.0]]) for one in (restored, embedding)
    )
    np.testing.assert_array_equal(got, expected)


def test_a_sample_without_ids_is_zero_and_has_no_part_in_the_gradient():
    embedding = make(CustomCombiner(mean, 2))
    got = step(embedding, ragged([[], []]), [[1.0, 1.0]] * 2)
    np.testing.assert_array_equal(got, np.zeros([2, 2]))
    table = embedding._variables["users"]["parameters"].numpy()
    np.testing.assert_array_equal(table, ROWS)


def test_negative_ids_of_sparse_input_are_pruned():
    embedding = make(CustomCombiner(mean, 3))
    got = step(embedding, sparse([[0, -1], [-7]]), [[0.0, 0.0]] * 2)
    np.testing.assert_array_equal(got, [ROWS[0], [0.0, 0.0]])


@pytest.mark.parametrize(
    ("ids", "shape"), [(tf.constant([1, 2]), [2, 2]), (None, [2, 3, 2])]
)
def test_dense_and_sequence_features_are_not_combined(ids, shape):
    arguments = {"max_sequence_length": 3} if ids is None else {}
    embedding = make(CustomCombiner(mean, 3), **arguments)
    embedding.enqueue(ragged([[1], [2, 3]]) if ids is None else ids)
    activations = embedding.dequeue()
    assert activations.shape == shape
    np.testing.assert_array_equal(
        tf.reshape(activations, [2, -1, 2])[:, 0], ROWS[[1, 2]]
    )


def test_a_table_without_vocabulary_trains():
    embedding = make(CustomCombiner(total, 3), vocabulary=None)
    ids = ragged([[7, -3], [7]])
    got = step(embedding, ids, [[1.0, 1.0], [0.5, 0.5]])
    np.testing.assert_array_equal(got, [[2.0, 2.0], [1.0, 1.0]])
    got = step(embedding, ids, [[0.0, 0.0]] * 2)
    np.testing.assert_array_equal(got, [[-0.5, -0.5], [-0.5, -0.5]])


def test_it_works_in_a_function_and_over_replicas():
    strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
    with strategy.scope():
        embedding = make(CustomCombiner(total, 3))

    def one_replica():
        embedding.enqueue(ragged([[0, 1], [0]]))
        activations = embedding.dequeue()
        embedding.apply_gradients(tf.ones_like(activations))

    tf.function(lambda: strategy.run(one_replica))()
    table = embedding._variables["users"]["parameters"].numpy()
    assert (table - ROWS)[:, 0].tolist() == [-4, -2, 0, 0, 0, 0]


@pytest.mark.skipif(not HAS_THEIRS, reason="TensorFlow has none yet")
def test_tensorflows_own_is_accepted():
    initializer = tf.constant_initializer([1.0, 2.0, 3.0])
    theirs = THEIRS.CustomCombiner(weighted, 3, 3, initializer, 0.5)
    table = THEIRS.TableConfig(6, 2, rows, combiner=theirs)
    embedding = tfembed.TPUEmbedding(
        THEIRS.FeatureConfig(table), THEIRS.SGD(1.0)
    )
    got = step(embedding, ragged([[0, 2]]), [[1.0, 1.0]])
    np.testing.assert_allclose(got, [ROWS[0] + 2 * ROWS[2]])


def test_weights_of_ids_are_refused():
    embedding = make(CustomCombiner(total, 3))
    ids = ragged([[0, 1]])
    with pytest.raises(errors.ArgumentError, match="takes none"):
        embedding.enqueue(ids, tf.cast(ids, tf.float32))


def test_serving_says_what_it_cannot_do():
    embedding = make(CustomCombiner(total, 3))
    embedding.build()
    (table,) = embedding.embedding_tables
    with pytest.raises(errors.UnsupportedError, match="CustomCombiner"):
        tfembed.serving_embedding_lookup(
            ragged([[0]]),
            None,
            embedding.embedding_tables,
            FeatureConfig(table),
        )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("mean", 3), "combiner_computation"),
        ((total, 0), "max_valency.*0"),
        ((total, 3, -1), "num_weights.*-1"),
        ((weighted, 3, 3), "`initializer` must be set"),
    ],
)
def test_what_is_not_allowed_is_refused(arguments, text):
    with pytest.raises(errors.ArgumentError, match=text):
        CustomCombiner(*arguments)


def test_string_ids_are_combined_and_trained():
    table = TableConfig(
        None,
        2,
        tf.constant_initializer(1.0),
        combiner=CustomCombiner(total, 3),
        key_dtype=tf.string,
    )
    rule = optimizers.CustomOptimizer(
        lambda gradient, row, slots, rate, others: row - rate * gradient, 1.0
    )
    embedding = tfembed.TPUEmbedding(FeatureConfig(table), rule)
    ids = tf.ragged.constant([["a", "b"], ["a"]])
    got = step(embedding, ids, [[1.0, 1.0], [0.5, 0.5]])
    np.testing.assert_array_equal(got, [[2.0, 2.0], [1.0, 1.0]])
    got = step(embedding, ids, [[0.0, 0.0]] * 2)
    np.testing.assert_array_equal(got, [[-0.5, -0.5], [-0.5, -0.5]])


def _weights(embedding):
    return embedding._trackable_children()[
        "users/custom_combiner_variables"
    ].numpy()


@pytest.mark.parametrize("nonfinite", ["skip", "refuse", "allow"])
def test_a_gradient_that_is_not_finite_reaches_no_weight(nonfinite):
    table = TableConfig(6, 2, rows, combiner=weighted_combiner(), name="users")
    embedding = tfembed.TPUEmbedding(
        FeatureConfig(table), optimizers.SGD(1.0), nonfinite=nonfinite
    )
    ids, bad = ragged([[0, 2], [1]]), [[np.nan, 0.0], [1.0, 1.0]]
    if nonfinite == "refuse":
        with pytest.raises(tf.errors.InvalidArgumentError, match="CustomComb"):
            step(embedding, ids, bad)
        np.testing.assert_array_equal(embedding.embedding_tables[table], ROWS)
    else:
        step(embedding, ids, bad)
    is_finite = np.isfinite(_weights(embedding)).all()
    assert is_finite == (nonfinite != "allow")
    if nonfinite != "allow":
        assert _weights(embedding).tolist() == [1.0, 2.0, 3.0]


def test_samples_without_ids_give_no_gradient_where_a_norm_has_none():
    def direction(valency, vectors, weights):
        del valency
        summed = tf.reduce_sum(vectors * weights[:, None], axis=0)
        return summed / tf.norm(summed)

    one = tf.ones_initializer()
    embedding = make(CustomCombiner(direction, 3, 3, one, 0.5))
    step(embedding, ragged([[0, 2], []]), [[1.0, 0.0], [1.0, 1.0]])
    assert np.isfinite(_weights(embedding)).all()
    assert _weights(embedding).tolist() != [1.0, 1.0, 1.0]
    assert np.isfinite(embedding._variables["users"]["parameters"]).all()
