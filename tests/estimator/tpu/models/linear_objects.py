"""Linear models as objects, and estimators of them."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.estimator.tpu import replica_model
from tfembed.estimator import tpu

RATE = replica_model.RATE


def compiled(optimizer=None):
    """A Keras model of the features' dict."""
    inputs = {"x": keras.Input((3,), name="x")}
    outputs = keras.layers.Dense(1, kernel_initializer="zeros")(inputs["x"])
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer or keras.optimizers.SGD(RATE),
        "mse",
        metrics=[keras.metrics.MeanAbsoluteError(name="mae")],
    )
    return model


class Plain(tf.Module):
    """The same without Keras' model."""

    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.zeros([3, 1]))
        self.b = tf.Variable(tf.zeros([1]))
        self.optimizer = keras.optimizers.SGD(RATE)
        self.metrics = [keras.metrics.MeanAbsoluteError(name="mae")]

    def __call__(self, features, training):
        return features["x"] @ self.w + self.b

    def loss(self, labels, predictions):
        return tf.reduce_mean((predictions - labels) ** 2, axis=-1)


def make(
    folder,
    replicas,
    make_model=compiled,
    *,
    iterations=4,
    batch=16,
    tpu_config=None,
    run_config=None,
    **options,
):
    """Makes an estimator; 0 replicas: use_tpu=False."""
    config = replica_model.config_of(
        folder, replicas, iterations, tpu_config, run_config
    )
    return tpu.TPUEstimator(
        model=make_model,
        config=config,
        use_tpu=replicas > 0,
        train_batch_size=batch,
        eval_batch_size=batch,
        predict_batch_size=batch,
        **options,
    )


def weights(estimator):
    """The weight and the bias in the latest checkpoint."""
    found = {
        name: estimator.get_variable_value(name)
        for name in estimator.get_variable_names()
        if "VARIABLE_VALUE" in name
    }
    # Of Keras' models, the optimizer has the shortest path to variables.
    (weight,) = [v for v in found.values() if np.shape(v) == (3, 1)]
    (bias,) = [v for v in found.values() if np.shape(v) == (1,)]
    return weight, bias
