"""The Keras layers that squash a sample's ids, and that have a table a field."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tfembed.dynamic_embedding as de
from keras_models import batches, model_of, table_of


def test_row_76_two_calls_of_a_layer_in_one_step_both_train():
    layer = de.keras.layers.Embedding(2, initializer=0.0, name="r76")
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))

    with tf.GradientTape() as tape:
        first = layer(tf.constant([1, 2], tf.int64))
        second = layer(tf.constant([[3, 4, 5]], tf.int64))
        loss = tf.reduce_sum(first) + tf.reduce_sum(second)
    weights = layer.trainable_weights
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

    keys, values = layer.params.export()
    assert sorted(keys.numpy()) == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(values, np.full([5, 2], -1.0))


def test_row_77_after_fit_the_table_has_the_distinct_ids():
    model = model_of()
    seen = set()
    for first_id in (0, 20, 1000):
        data = batches(first_id)
        model.fit(data, verbose=0)
        seen.update(id for ids, _ in data for id in ids.numpy().ravel())

        assert int(table_of(model).size()) == len(seen)


def test_row_78_layers_read_what_was_upserted():
    layer = de.keras.layers.Embedding(8, name="r78")
    ids = tf.constant([[15, 2], [4, 92], [22, 4]], tf.int64)
    layer.params.upsert(ids, tf.ones([3, 2, 8]))

    np.testing.assert_array_equal(layer(ids), np.ones([3, 2, 8]))


def test_row_78_a_squashed_layer_gives_a_row_for_each_example():
    layer = de.keras.layers.SquashedEmbedding(8, initializer=1.0, name="r78s")

    squashed = layer(tf.constant([[15, 2], [4, 92], [22, 4]], tf.int64))

    np.testing.assert_array_equal(squashed, np.full([3, 8], 2.0))


def test_row_78_a_field_wise_layer_gives_a_row_for_each_field():
    layer = de.keras.layers.FieldWiseEmbedding(
        4, 2, lambda ids: ids % 2, initializer=1.0, name="r78f"
    )

    rows = layer(tf.reshape(tf.range(200, dtype=tf.int64), [25, 8]))

    np.testing.assert_array_equal(rows, np.full([25, 2, 4], 4.0))
