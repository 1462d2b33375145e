"""Functions that train are saved with their model, and run where it is loaded."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fresh_process
import tfembed


@pytest.mark.parametrize("overlaps", [False, True])
def test_functions_that_train_are_saved_with_their_model(overlaps, tmp_path):
    class Model(tf.Module):
        def __init__(self):
            table = tfembed.TableConfig(8, 4, tf.ones_initializer(), name="t")
            self.embedding = tfembed.TPUEmbedding(
                {"ids": tfembed.FeatureConfig(table)},
                tfembed.Adagrad(0.1),
                pipeline_execution_with_tensor_core=overlaps,
            )

        @tf.function
        def train(self, ids):
            self.embedding.enqueue(ids)
            rows = self.embedding.dequeue()
            self.embedding.apply_gradients(rows)
            return rows["ids"]

    model = Model()
    ids = {"ids": tf.ragged.constant([[1, 2], [2]])}
    for _ in range(2):
        model.train(ids)
    tf.saved_model.save(model, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))

    # A batch on its way in one model is not in the other.
    model.embedding.enqueue(ids)
    expected = [model.train(ids).numpy() for _ in range(3)]
    found = [loaded.train(ids).numpy() for _ in range(3)]
    np.testing.assert_array_equal(found, expected)
    assert expected[2].sum() < expected[0].sum()
    path = tf.train.Checkpoint(m=model).save(tmp_path / "checkpoint")
    assert {
        key
        for key in dict(tf.train.list_variables(path))
        if key.startswith("m/")
    } == {
        "m/embedding/t/.ATTRIBUTES/VARIABLE_VALUE",
        "m/embedding/t.Saccumulators/.ATTRIBUTES/VARIABLE_VALUE",
    }


def test_each_copy_of_a_model_that_is_loaded_has_its_own_batches(tmp_path):
    class Model(tf.Module):
        def __init__(self):
            table = tfembed.TableConfig(8, 4, tf.ones_initializer(), name="t")
            self.embedding = tfembed.TPUEmbedding(
                tfembed.FeatureConfig(table), tfembed.SGD(0.1)
            )

        @tf.function(input_signature=[tf.TensorSpec([2], tf.int64)])
        def put(self, ids):
            self.embedding.enqueue(ids)

        @tf.function(input_signature=[])
        def take(self):
            return self.embedding.dequeue()

    model = Model()
    model.put(tf.constant([1, 2], tf.int64))
    model.take()
    tf.saved_model.save(model, str(tmp_path))
    one, other = (tf.saved_model.load(str(tmp_path)) for _ in "ab")
    one.put(tf.constant([3, 4], tf.int64))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="nothing enqueued"
    ):
        other.take()
    assert one.take().shape == [2, 4]


def test_a_saved_model_that_only_serves_needs_tensorflow_alone(tmp_path):
    """Though functions outside of it, and eager steps, trained its tables."""
    table = tfembed.TableConfig(8, 4, tf.ones_initializer(), name="t")
    feature = tfembed.FeatureConfig(table)
    embedding = tfembed.TPUEmbedding(feature, tfembed.SGD(0.5))

    @tf.function
    def train(ids):
        embedding.enqueue(ids)
        embedding.apply_gradients(tf.ones_like(embedding.dequeue()))

    train(tf.constant([1]))
    embedding.enqueue(tf.constant([1]))
    embedding.apply_gradients(tf.ones_like(embedding.dequeue()))

    class Model(tf.Module):
        def __init__(self):
            self.embedding = embedding

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def serve(self, ids):
            return tfembed.serving_embedding_lookup(
                ids, None, embedding.embedding_tables, feature
            )

    model = Model()
    tf.saved_model.save(model, str(tmp_path), {"serve": model.serve})
    assert fresh_process.output_of(
        """
        import sys
        import tensorflow as tf

        loaded = tf.saved_model.load(sys.argv[1])
        print(loaded.serve(tf.constant([1, 2], tf.int64)).numpy()[:, 0])
        """,
        str(tmp_path),
    ).startswith("[0. 1.]")
    keys = dict(tf.train.list_variables(tmp_path / "variables" / "variables"))
    assert [key for key in keys if key.startswith("embedding")] == [
        "embedding/t/.ATTRIBUTES/VARIABLE_VALUE"
    ]


def _trained_by_one():
    table = tfembed.TableConfig(8, 4, tf.ones_initializer(), name="t")
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table), tfembed.SGD(0.5)
    )
    embedding.build(per_replica_batch_size=1)
    return embedding


def _step(embedding, ids):
    embedding.enqueue(ids)
    activations = embedding.dequeue()
    embedding.apply_gradients(tf.ones_like(activations))
    return activations


@pytest.mark.parametrize("as_root", [False, True])
def test_functions_of_the_embedding_itself_are_saved(as_root, tmp_path):
    embedding = _trained_by_one()
    embedding.train = tf.function(lambda ids: _step(embedding, ids))
    ids = tf.constant([1], tf.int64)
    embedding.train(ids)
    model = embedding
    if not as_root:
        model = tf.Module()
        model.embedding = embedding
    tf.saved_model.save(model, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    train = (loaded if as_root else loaded.embedding).train
    np.testing.assert_array_equal(train(ids), tf.fill([1, 4], 0.5))
    np.testing.assert_array_equal(train(ids), tf.fill([1, 4], 0.0))


def test_functions_that_were_never_called_are_saved(tmp_path):
    class Trainer(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([1], tf.int64)])
        def train(self, ids):
            return _step(model.embedding, ids)

    model = tf.Module()
    model.embedding = _trained_by_one()
    model.trainer = Trainer()
    tf.saved_model.save(model, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    ids = tf.constant([1], tf.int64)
    loaded.trainer.train(ids)
    np.testing.assert_array_equal(
        loaded.trainer.train(ids), tf.fill([1, 4], 0.5)
    )


def test_functions_that_train_a_table_that_expires_are_saved(tmp_path):
    table = tfembed.TableConfig(
        None,
        2,
        name="h",
        initializer=0.0,
        eviction=tfembed.policies.LeastRecent(),
        expiry=tfembed.policies.Expiry(1000.0, every=3),
    )
    model = tf.Module()
    model.embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table), tfembed.SGD(1.0), engine="host"
    )
    model.train = tf.function(lambda ids: _step(model.embedding, ids))
    ids = tf.constant([1], tf.int64)
    model.train(ids)
    tf.saved_model.save(model, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.train(ids), tf.fill([1, 2], -1.0))
    np.testing.assert_array_equal(loaded.train(ids), tf.fill([1, 2], -2.0))
