"""The private symbols of TensorFlow that embeddings use are there."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.tpu import tpu_function

from tfembed.estimator.embeddings import private


def test_an_op_takes_another_input_in_place_of_a_stand_in():
    with tf.Graph().as_default():
        stand_in = tf.compat.v1.placeholder(tf.float32, [])
        added = tf.add(stand_in, 1.0)
        private.connect(added.op, stand_in, tf.constant(2.0))
        with tf.compat.v1.Session() as session:
            assert session.run(added) == 3.0


def test_the_names_of_columns_variables_are_taken_once():
    categorical = tf.feature_column.categorical_column_with_identity("x", 5)
    column = tf.compat.v1.tpu.experimental.embedding_column(categorical, 2)
    with tf.Graph().as_default() as graph:
        with tpu_function.tpu_shard_context(1):
            tf.compat.v1.feature_column.input_layer(
                {"x": tf.ones([1, 2])}, [column]
            )
        first = private.take_column_scopes(graph)
        second = private.take_column_scopes(graph)

    assert first == {"x": "input_layer/x_embedding/embedding_weights"}
    assert second == {}


def test_a_feature_of_a_tensor_core_column_is_padded():
    categorical = tf.feature_column.categorical_column_with_identity("x", 5)
    column = tf.compat.v1.tpu.experimental.embedding_column(
        categorical,
        2,
        embedding_lookup_device="tpu_tensor_core",
        tensor_core_shape=[None, 2],
    )
    ids = tf.SparseTensor([[0, 0], [0, 1], [0, 2]], [4, 3, 2], [2, 3])

    values, mask = private.padded(ids, private.padded_size(column))

    assert private.is_on_tensor_core(column)
    assert values.numpy().tolist() == [[4, 3], [0, 0]]
    assert mask.numpy().tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_the_key_of_a_sequences_length_is_known():
    assert private.length_key("x") == "x_seq_length_"
