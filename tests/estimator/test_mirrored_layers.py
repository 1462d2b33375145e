"""Layers of Keras 3 that assign, in model_fns under a strategy of replicas."""

from __future__ import annotations

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import test_keras_layers as layers
from tfembed import errors, estimator

v1 = tf.compat.v1
X = layers.X
CPUS = ["CPU:0", "CPU:1"]


def make(model_fn, folder, strategy=None):
    def of_cpu(features, labels, mode, params):
        return model_fn(features, labels, mode, params).as_estimator_spec()

    config = estimator.RunConfig(
        save_summary_steps=0,
        tf_random_seed=5,
        train_distribute=strategy or tf.distribute.MirroredStrategy(CPUS),
    )
    return estimator.Estimator(of_cpu, str(folder), config, {})


def test_statistics_are_those_of_the_first_replicas_batches(tmp_path):
    model = make(layers.normalized, tmp_path)
    before = random.getstate()
    model.train(layers.batches, steps=3)
    mean, variance = np.zeros(3), np.ones(3)
    for batch in X[[0, 2, 0]]:  # Replica 1 takes the batches between.
        mean = 0.9 * mean + 0.1 * batch.mean(0)
        variance = 0.9 * variance + 0.1 * batch.var(0)

    predicted = [each["x"] for each in model.predict(layers.once)]
    for name, value in (("mean", mean), ("variance", variance)):
        np.testing.assert_allclose(
            model.get_variable_value(f"batch_normalization/moving_{name}"),
            value,
            rtol=1e-4,
        )
    beta = model.get_variable_value("batch_normalization/beta")
    np.testing.assert_allclose(
        predicted,
        (X.reshape(-1, 3) - mean) / np.sqrt(variance + 1e-3) + beta,
        rtol=1e-3,
        atol=1e-4,
    )
    assert random.getstate() == before


class AllOf(v1.train.SessionRunHook):
    """Notes a collection's tensors, a replica each, in each step."""

    def __init__(self, name):
        self._name, self.values = name, []

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(v1.get_collection(self._name))

    def after_run(self, run_context, run_values):
        self.values += run_values.results


def test_each_replica_and_step_draws_another_mask(tmp_path):
    first, second = AllOf("first"), AllOf("second")
    make(layers.masked, tmp_path).train(
        layers.batches, steps=2, hooks=[first, second]
    )

    masks = {mask.tobytes() for mask in first.values + second.values}
    assert len(masks) == 8


@keras.saving.register_keras_serializable()
class Counting(keras.layers.Layer):
    """Adds the first feature's sum of a batch, as the mean of replicas."""

    def build(self, shape):
        self.total = self.add_weight(
            shape=(),
            initializer="zeros",
            trainable=False,
            aggregation="mean",
            name="total",
        )

    def call(self, x):
        self.total.assign(self.total + tf.reduce_sum(x[:, 0]))
        return x


def counted(features, labels, mode, params):
    x = Counting()(features["x"])
    outputs = keras.layers.Dense(1)(x)
    return layers._spec(mode, outputs, labels)


def test_weights_that_replicas_share_are_assigned_too(tmp_path):
    model = make(counted, tmp_path)
    model.train(layers.batches, steps=2)

    np.testing.assert_allclose(
        model.get_variable_value("counting/total"),
        X[:, :, 0].sum() / 2,
        rtol=1e-5,
    )


def test_updates_under_another_strategy_are_refused(tmp_path):
    strategy = tf.distribute.experimental.CentralStorageStrategy(CPUS)
    with pytest.raises(errors.UnsupportedError, match="Use a MirroredStrategy"):
        make(layers.normalized, tmp_path, strategy).train(
            layers.batches, steps=1
        )
