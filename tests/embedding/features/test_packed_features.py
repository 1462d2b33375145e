"""Packed batches: unpacked as they were, and taken as the structure is."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import marks, steps
from property import cases
from tfembed import errors


def _same(one, other):
    if isinstance(one, tf.RaggedTensor):
        np.testing.assert_array_equal(one.row_splits, other.row_splits)
    elif isinstance(one, tf.SparseTensor):
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_array_equal(one.dense_shape, other.dense_shape)
    else:
        np.testing.assert_array_equal(one, other)
        return
    np.testing.assert_array_equal(one.values, other.values)


def test_a_batch_is_unpacked_as_it_was():
    features, weights = steps.draw_step(np.random.default_rng(3)).inputs()
    values, of_values = tfembed.pack_features(features, weights).unpack()
    for one, other in zip(tf.nest.flatten(features), values, strict=True):
        _same(one, other)
    for one, other in zip(tf.nest.flatten(weights), of_values, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            _same(one, other)


def test_input_of_a_higher_rank_and_empty_input_are_kept():
    features = [
        tf.sparse.from_dense(tf.ones([2, 3, 4], tf.int64)),
        tf.zeros([2, 3, 1], tf.int32),
        tf.ragged.constant([[], []], dtype=tf.int64),
        tf.SparseTensor(
            tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64), [2, 5]
        ),
    ]
    values, _ = tfembed.pack_features(features).unpack()
    for one, other in zip(features, values, strict=True):
        assert one.shape.as_list() == other.shape.as_list() or (
            isinstance(one, tf.RaggedTensor)
        )
        _same(one, other)


def _embedding():
    def rows(shape, dtype):
        return tf.random.stateless_uniform(shape, [3, 5], -1.0, 1.0, dtype)

    return tfembed.TPUEmbedding(
        steps.configs(vocabulary=cases.VOCABULARY, initializer=rows),
        tfembed.Adagrad(0.5),
    )


def test_training_by_packed_batches_is_the_same_and_is_traced_once():
    rng = np.random.default_rng(5)
    batches = [steps.draw_step(rng) for _ in range(5)]
    plain, packed = _embedding(), _embedding()

    @tf.function
    def step(batch, gradients):
        packed.enqueue(batch)
        activations = packed.dequeue()
        packed.apply_gradients(gradients)
        return activations

    for one in batches:
        plain.enqueue(*one.inputs())
        expected = plain.dequeue()
        plain.apply_gradients(one.structured_gradients())
        ours = step(
            tfembed.pack_features(*one.inputs()), one.structured_gradients()
        )
        tf.nest.map_structure(np.testing.assert_array_equal, ours, expected)
    assert step.experimental_get_tracing_count() == 1


def _features():
    table = tfembed.TableConfig(100, 4, name="items", combiner="sum")
    return {
        "one": tfembed.FeatureConfig(table),
        "bag": tfembed.FeatureConfig(table),
        "last": tfembed.FeatureConfig(table, max_sequence_length=3),
    }


def _rows():
    """Samples with 0 to 9 ids each."""
    rng = np.random.default_rng(1)
    bags = tf.ragged.constant(
        [rng.integers(0, 100, n).tolist() for n in rng.integers(0, 9, 16)],
        dtype=tf.int64,
    )
    return tf.data.Dataset.from_tensor_slices(
        {"one": rng.integers(0, 100, 16), "bag": bags, "last": bags}
    )


def _words():
    table = tfembed.TableConfig(
        None, 2, name="words", key_dtype=tf.string, seed=3
    )
    likes = tfembed.TableConfig(9, 2, name="likes")
    return {
        "bag": tfembed.FeatureConfig(table),
        "like": tfembed.FeatureConfig(likes),
        "word": tfembed.FeatureConfig(table),
    }


@marks.GROWS
def test_string_ids_are_packed_beside_integers_and_train():
    bags = tf.ragged.constant([["a", "b"], [], ["c"], ["a"]])
    rows = {
        "bag": bags,
        "like": tf.constant([[1], [2], [3], [4]]),
        "word": tf.constant(["x", "y", "x", "z"]),
    }
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    dataset = dataset.ragged_batch(2, drop_remainder=True)
    embedding = tfembed.TPUEmbedding(_words(), tfembed.SGD(0.5))
    plain = tfembed.TPUEmbedding(_words(), tfembed.SGD(0.5))
    plain.build(2)
    embedding.build(2)
    for one, other in zip(
        plain.embedding_tables.values(),
        embedding.embedding_tables.values(),
        strict=True,
    ):
        if isinstance(one, tf.Variable):
            one.assign(other)

    @tf.function
    def step(batch):
        embedding.enqueue(batch)
        activations = embedding.dequeue()
        embedding.apply_gradients(activations)
        return activations

    packed = dataset.map(tfembed.pack_features)
    for batch, structure in zip(packed, dataset, strict=True):
        plain.enqueue(structure)
        expected = plain.dequeue()
        plain.apply_gradients(expected)
        tf.nest.map_structure(
            np.testing.assert_array_equal, step(batch), expected
        )
    assert step.experimental_get_tracing_count() == 1
    assert embedding.sizes()["words"].rows == 6


@marks.GROWS
def test_batches_without_integers_are_packed():
    features = {"word": tf.constant(["x", "y"])}
    packed = tfembed.pack_features(features)
    assert packed.unpack()[0][0].numpy().tolist() == [b"x", b"y"]


def test_tf_data_packs_and_a_function_takes_few_tensors():
    dataset = _rows().ragged_batch(4, drop_remainder=True)
    packed = dataset.map(tfembed.pack_features)
    embedding = tfembed.TPUEmbedding(_features(), tfembed.SGD(0.1))

    @tf.function
    def look_up(batch):
        embedding.enqueue(batch, training=False)
        return embedding.dequeue()

    for plain, batch in zip(dataset, packed, strict=True):
        embedding.enqueue(plain, training=False, name="plain")
        tf.nest.map_structure(
            np.testing.assert_array_equal,
            look_up(batch),
            embedding.dequeue("plain"),
        )
    assert look_up.experimental_get_tracing_count() == 1
    inputs = look_up.get_concrete_function(packed.element_spec).inputs
    assert sum(t.dtype != tf.resource for t in inputs) == 4


@pytest.mark.parametrize(
    "kind", [tfembed.TPUEmbeddingV0, tfembed.TPUEmbeddingForServing]
)
def test_lookups_by_a_tape_take_packed_batches(kind):
    embedding = kind(_features(), None)
    batch = next(iter(_rows().ragged_batch(4, drop_remainder=True)))
    tf.nest.map_structure(
        np.testing.assert_array_equal,
        tf.function(embedding)(tfembed.pack_features(batch)),
        embedding(batch),
    )


@pytest.mark.parametrize("inside", [True, False])
@marks.REPLICAS
def test_replicas_take_a_packed_batch_each(inside):
    strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
    table = tfembed.TableConfig(
        4, 1, lambda shape, dtype: tf.zeros(shape, dtype), name="users"
    )
    with strategy.scope():
        embedding = tfembed.TPUEmbedding(
            {"clicks": tfembed.FeatureConfig(table)}, tfembed.SGD(1.0)
        )
    batches = strategy.experimental_distribute_values_from_function(
        lambda context: tfembed.pack_features(
            {"clicks": tf.constant([context.replica_id_in_sync_group])}
        )
    )

    def train(batch=None):
        if batch is not None:
            embedding.enqueue(batch)
        embedding.apply_gradients(
            tf.nest.map_structure(tf.ones_like, embedding.dequeue())
        )

    if inside:
        strategy.run(train, args=(batches,))
    else:
        embedding.enqueue(batches)
        strategy.run(train)
    rows = embedding.embedding_tables[table].numpy()[:, 0]
    assert rows.tolist() == [-1, -1, 0, 0]


WRONG = [
    ({"a": 3}, None, errors.ArgumentError, "a is of unknown type.*int"),
    (
        {"a": tf.constant([1.0])},
        None,
        errors.DtypeError,
        "a must be integers or strings; got float32",
    ),
    (
        {"a": tf.constant([1])},
        {"a": tf.constant([1.0])},
        errors.ArgumentError,
        "dense input a",
    ),
    (
        {"a": tf.ragged.constant([[[1]]])},
        None,
        errors.ArgumentError,
        "rank 3 for input a",
    ),
    ({"a": tf.constant([1])}, [None], (ValueError, TypeError), "structure"),
    ({}, None, errors.ArgumentError, "`features` has none"),
]


@pytest.mark.parametrize(("features", "weights", "error", "text"), WRONG)
def test_what_cannot_be_packed_is_named(features, weights, error, text):
    with pytest.raises(error, match=text):
        tfembed.pack_features(features, weights)


def test_a_tensor_with_two_unknown_dimensions_cannot_be_packed():
    spec = {"a": tf.TensorSpec([None, None], tf.int64)}
    with pytest.raises(errors.ArgumentError, match="a has shape"):
        tf.function(tfembed.pack_features).get_concrete_function(spec)


def test_other_features_than_the_embeddings_are_refused():
    embedding = tfembed.TPUEmbedding(_features(), None)
    packed = tfembed.pack_features({"likes": tf.constant([1])})
    with pytest.raises(errors.ArgumentError, match="'likes'.*'bag'"):
        embedding.enqueue(packed)
    weights = {"likes": None}
    with pytest.raises(errors.ArgumentError, match="hold their weights"):
        embedding.enqueue(packed, weights)
