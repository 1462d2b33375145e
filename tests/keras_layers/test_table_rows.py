"""Rows of layers by hand: by id, as arrays, as data frames.

Kind: what tables by themselves offer, layers do too. Looked at: both layers,
tables with and without a vocabulary, several tables in a layer, XLA's tables.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from keras_layers import small_model
from tfembed import errors
from tfembed.keras.layers import DistributedEmbedding, Embedding
from tfembed.monitoring.vocabulary_rows import VocabularyRows


def named():
    layer = Embedding(2, embeddings_initializer="zeros", name="names")
    layer(tf.constant(["ann"]))
    layer.table.upsert(["ann", "bob"], [[1.0, 2.0], [3.0, 4.0]])
    return layer


def trained(vocabulary):
    layer = small_model.layer(vocabulary)
    batch = {
        "user": tf.constant([3, 5]),
        "bag": tf.constant([[1], [2]]),
        "last": tf.constant([[1], [2]]),
    }
    with tf.GradientTape() as tape:
        found = layer(batch, training=True)
        loss = tf.add_n([tf.reduce_sum(one) for one in found.values()])
    keras.optimizers.SGD(0.0).apply(
        tape.gradient(loss, layer.trainable_variables),
        layer.trainable_variables,
    )
    return layer, layer(batch, training=False)["user"]


def test_rows_says_which_ids_exist_and_makes_no_row():
    layer = named()
    rows, exists = layer.rows([["bob", "eve"]])
    np.testing.assert_array_equal(rows, [[[3, 4], [0, 0]]])
    np.testing.assert_array_equal(exists, [[True, False]])
    assert len(layer.table) == 2
    in_function = tf.function(lambda ids: layer.rows(ids, table="names"))
    np.testing.assert_array_equal(
        in_function(tf.constant(["ann"]))[0], [[1, 2]]
    )


def test_arrays_and_frames_have_all_rows_by_text():
    layer = named()
    keys, rows = layer.to_numpy()
    order = np.argsort(keys)
    assert keys[order].tolist() == ["ann", "bob"]
    np.testing.assert_array_equal(rows[order], [[1, 2], [3, 4]])
    frame = layer.to_pandas()
    assert frame.loc["bob"].tolist() == [3, 4]


@pytest.mark.parametrize("vocabulary", [16, None])
def test_a_layer_of_several_tables_reads_each_by_name(vocabulary):
    layer, activations = trained(vocabulary)
    rows, exists = layer.rows(np.array([3, 5, 2**40]), table="users")
    np.testing.assert_array_equal(rows[:2], activations)
    assert exists.numpy().tolist() == [True, True, False]
    if vocabulary:
        np.testing.assert_array_equal(rows[2], [0, 0])
    keys, every = layer.to_numpy(table="users")
    assert every.shape == (vocabulary or 2, 2)
    frame = layer.to_pandas(table="users", slots=True)
    assert list(frame.columns) == [0, 1, "accumulators_0", "accumulators_1"]
    np.testing.assert_array_equal(frame.loc[[3, 5], [0, 1]], activations)
    np.testing.assert_array_equal(frame.loc[keys, [0, 1]], every)
    assert (frame.loc[[3, 5], "accumulators_0"] > 0.1).all()


def test_a_table_with_a_vocabulary_is_read_in_the_words_of_python():
    layer, activations = trained(16)
    table = VocabularyRows(layer.get_embedding_tables()["users"])
    np.testing.assert_array_equal(table[[3, 5]], activations)
    assert 3 in table
    assert 16 not in table
    assert list(table) == list(range(16))
    assert len(table) == 16
    table.from_pandas(table.to_pandas() * 2)
    np.testing.assert_array_equal(
        layer.rows(3, table="users")[0], activations[0] * 2
    )


def test_the_only_table_needs_no_name():
    users = tfembed.TableConfig(None, 2, "zeros", name="users")
    layer = DistributedEmbedding(tfembed.FeatureConfig(users), tfembed.SGD(1.0))
    assert not layer.rows([7])[1].numpy().any()
    assert len(layer.to_pandas()) == 0


def test_bad_input_says_what_is_wrong():
    layer = small_model.layer()
    with pytest.raises(
        errors.MissingTableError, match=r"one of \['.*; got None"
    ):
        layer.rows([1])
    with pytest.raises(errors.MissingTableError, match="got 'films'"):
        layer.to_pandas(table="films")
    with pytest.raises(
        errors.DtypeError, match="table 'users' must be integers"
    ):
        layer.rows(["a"], table="users")
    with pytest.raises(errors.StateError, match="no table yet"):
        Embedding(2, name="early").rows([1])
    with pytest.raises(errors.UnsupportedError, match="eager"):
        tf.function(layer.to_numpy)(table="users")
    with pytest.raises(errors.UnsupportedError, match="eager"):
        tf.function(lambda: layer.rows([1], table="users"))()
