"""Variables in checkpoints, SavedModels and input pipelines."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import optimizers


def variable(shards=1, **options):
    return de.Variable(
        dim=2,
        devices=["/CPU:0"] * shards,
        initializer=tf.keras.initializers.RandomNormal(),
        name="saved",
        **options,
    )


def train(v, optimizer, keys):
    with tf.GradientTape() as tape:
        rows = de.embedding_lookup(v, keys, name="x")
        loss = tf.reduce_sum(rows * tf.cast(keys, tf.float32)[:, tf.newaxis])
    optimizer.apply_gradients([(tape.gradient(loss, v), v)])


def adagrad():
    return de.DynamicEmbeddingOptimizer(optimizers.Adagrad(0.5))


def contents(v):
    keys, values = (x.numpy() for x in v.export())
    return {int(k): row.tolist() for k, row in zip(keys, values, strict=True)}


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (3, 1)])
def test_training_goes_on_where_it_was_saved(tmp_path, before, after):
    keys = tf.constant([1, 2, 2, -7, 10**15], tf.int64)
    first, optimizer = variable(before), adagrad()
    train(first, optimizer, keys)
    saved = tf.train.Checkpoint(v=first, o=optimizer).save(tmp_path / "c")
    train(first, optimizer, keys)

    second, other = variable(after), adagrad()
    tf.train.Checkpoint(v=second, o=other).restore(saved)
    train(second, other, keys)

    assert contents(second) == contents(first)
    assert int(other.iterations) == 2
    unseen = [5, 6]
    np.testing.assert_array_equal(first.lookup(unseen), second.lookup(unseen))


def test_a_variable_without_checkpoint_is_left_out(tmp_path):
    v = variable(checkpoint=False)
    v.upsert([1], [[1.0, 2.0]])
    saved = tf.train.Checkpoint(v=v).save(tmp_path / "c")
    v.clear()

    tf.train.Checkpoint(v=v).restore(saved)

    assert int(v.size()) == 0


@pytest.mark.parametrize("shards", [1, 2])
def test_a_saved_model_looks_rows_up(tmp_path, shards):
    v = variable(shards)
    v.upsert([1, 2], [[1.0, 1.0], [2.0, 2.0]])
    module = tf.Module()
    module.v = v

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def serve(ids):
        return de.embedding_lookup(v, ids)

    module.serve = serve
    tf.saved_model.save(module, str(tmp_path))

    served = tf.saved_model.load(str(tmp_path)).serve
    ids = tf.constant([2, 1, 7], tf.int64)
    np.testing.assert_array_equal(served(ids), v.lookup(ids))


def test_rows_are_looked_up_inside_an_input_pipeline():
    v = variable()
    v.upsert([1, 2], [[1.0, 1.0], [2.0, 2.0]])
    data = tf.data.Dataset.from_tensor_slices(tf.constant([2, 1], tf.int64))
    rows = [x.numpy().tolist() for x in data.batch(2).map(v.lookup)]
    assert rows == [[[2, 2], [1, 1]]]
