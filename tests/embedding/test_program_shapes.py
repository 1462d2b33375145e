"""Whole programs in the shapes that TensorFlow's pages give them.

Loops of steps in one function, a distributed dataset of replicas' own batches,
evaluation between, restored and served in the end; only imports and strategy are
not a TPU's.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from cpu_replicas import mirrored
from embedding import marks

BATCH, STEPS = 4, 5


def _features():
    """Made anew for each object: an object writes names into its configs."""
    videos = tfembed.TableConfig(16, 4, name="video", combiner="sum")
    users = tfembed.TableConfig(8, 2, name="user")
    return {
        "watched": tfembed.FeatureConfig(videos, max_sequence_length=3),
        "favorited": tfembed.FeatureConfig(videos),
        "friends": tfembed.FeatureConfig(users),
    }


def _dataset(context):
    """Features and a label, without end; each pipeline its own."""
    del context
    rng = np.random.default_rng(3)
    n = 32

    def bags(limit):
        rows = [
            rng.integers(0, limit, k).tolist() for k in rng.integers(1, 4, n)
        ]
        return tf.ragged.constant(rows, dtype=tf.int64)

    features = {
        "watched": bags(16),
        "favorited": rng.integers(0, 16, n),
        "friends": bags(8),
    }
    labels = (features["favorited"] % 3).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels)).repeat()
    return dataset.ragged_batch(BATCH, drop_remainder=True)


class _Head(tf.Module):
    """The dense part."""

    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(tf.ones([4 * 3 + 4 + 2, 1]) * 0.1)

    def __call__(self, activations):
        flat = [
            tf.reshape(a, [tf.shape(a)[0], -1])
            for a in tf.nest.flatten(activations)
        ]
        return tf.squeeze(tf.concat(flat, 1) @ self.kernel, -1)


def _distributed(strategy):
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    return iter(
        strategy.distribute_datasets_from_function(_dataset, options=options)
    )


def _train_and_save(path, replicas):
    """A trained TPUEmbedding; the losses; where it is saved."""
    strategy = mirrored(replicas)
    with strategy.scope():
        embedding = tfembed.TPUEmbedding(_features(), tfembed.Adagrad(0.2))
        head = _Head()
        optimizer = keras.optimizers.SGD(0.02)
        optimizer.build([head.kernel])
    iterator = _distributed(strategy)

    @tf.function
    def training_step(iterator, num_steps):
        def replica_step(labels):
            activations = embedding.dequeue()
            with tf.GradientTape() as tape:
                tape.watch(activations)
                error = head(activations) - labels
                loss = tf.reduce_sum(error**2) / (replicas * BATCH)
            by_rows, by_kernel = tape.gradient(loss, (activations, head.kernel))
            embedding.apply_gradients(by_rows)
            optimizer.apply_gradients([(by_kernel, head.kernel)])
            return loss

        total = tf.constant(0.0)
        for _ in tf.range(num_steps):
            features, labels = next(iterator)
            embedding.enqueue(features, training=True)
            losses = strategy.run(replica_step, args=(labels,))
            total += strategy.reduce("SUM", losses, axis=None)
        return total / tf.cast(num_steps, tf.float32)

    @tf.function
    def evaluation_step(iterator, num_steps):
        def replica_step(labels):
            error = head(embedding.dequeue()) - labels
            return tf.reduce_sum(error**2) / (replicas * BATCH)

        total = tf.constant(0.0)
        for _ in tf.range(num_steps):
            features, labels = next(iterator)
            embedding.enqueue(features, training=False)
            losses = strategy.run(replica_step, args=(labels,))
            total += strategy.reduce("SUM", losses, axis=None)
        return total / tf.cast(num_steps, tf.float32)

    steps = tf.constant(STEPS)
    losses = [float(evaluation_step(iterator, steps))]
    for _ in range(8):
        training_step(iterator, steps)
        losses.append(float(evaluation_step(iterator, steps)))
    checkpoint = tf.train.Checkpoint(head=head, embedding=embedding)
    return embedding, losses, checkpoint.save(path)


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=marks.REPLICAS)])
def test_train_evaluate_restore_and_serve(replicas, tmp_path):
    embedding, losses, path = _train_and_save(tmp_path / "model", replicas)
    assert losses[-1] < 0.3 * losses[0]

    # Elsewhere: the default strategy, no slots.
    config = _features()
    serving = tfembed.TPUEmbeddingForServing(config, None)
    head = _Head()
    serving.build()
    tf.train.Checkpoint(head=head, embedding=serving).restore(
        path
    ).expect_partial()

    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = serving, head

        @tf.function(
            input_signature=[
                {
                    "watched": tf.RaggedTensorSpec([None, None], tf.int64),
                    "favorited": tf.TensorSpec([None], tf.int64),
                    "friends": tf.RaggedTensorSpec([None, None], tf.int64),
                }
            ]
        )
        def serve(self, features):
            return self.head(self.embedding(features))

    model = Model()
    folder = str(tmp_path / "served")
    tf.saved_model.save(model, folder, {"serving_default": model.serve})
    loaded = tf.saved_model.load(folder)
    features, _ = next(iter(_dataset(None)))
    expected = head(
        tfembed.serving_embedding_lookup(
            features,
            None,
            serving.embedding_tables,
            config,
        )
    )
    np.testing.assert_allclose(loaded.serve(features), expected, 1e-6)
    for ours, theirs in zip(
        embedding.embedding_tables.values(),
        serving.embedding_tables.values(),
        strict=True,
    ):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@marks.TAPED
@pytest.mark.parametrize("replicas", [1, 2])
def test_v0_trains_and_evaluates_in_loops(replicas):
    strategy = mirrored(replicas)
    with strategy.scope():
        embedding = tfembed.TPUEmbeddingV0(_features(), None)
        head = _Head()
        embedding.build()
        variables = [*embedding.trainable_variables, head.kernel]
        optimizer = keras.optimizers.Adagrad(0.2)
        optimizer.build(variables)
    iterator = _distributed(strategy)

    def loss_of(features, labels):
        error = head(embedding(features)) - labels
        return tf.reduce_sum(error**2) / (replicas * BATCH)

    @tf.function
    def training_step(iterator, num_steps):
        def replica_step(features, labels):
            with tf.GradientTape() as tape:
                loss = loss_of(features, labels)
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        for _ in tf.range(num_steps):
            strategy.run(replica_step, args=next(iterator))

    @tf.function
    def evaluation_step(iterator, num_steps):
        total = tf.constant(0.0)
        for _ in tf.range(num_steps):
            losses = strategy.run(loss_of, args=next(iterator))
            total += strategy.reduce("SUM", losses, axis=None)
        return total / tf.cast(num_steps, tf.float32)

    steps = tf.constant(STEPS)
    before = float(evaluation_step(iterator, steps))
    for _ in range(8):
        training_step(iterator, steps)
    assert float(evaluation_step(iterator, steps)) < 0.3 * before
