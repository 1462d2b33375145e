"""A linear model on replicas, its data, and an estimator of it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfembed.estimator import ModeKeys, tpu

v1 = tf.compat.v1

_random = np.random.default_rng(11)
X = _random.normal(size=(64, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5]], np.float32) + 0.25).astype(np.float32)
RATE = 0.1


def train_fn(params):
    data = tf.data.Dataset.from_tensor_slices(({"x": X}, Y))
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def some(rows):
    """An input_fn of the first rows, once."""

    def input_fn(params):
        data = tf.data.Dataset.from_tensor_slices(({"x": X[:rows]}, Y[:rows]))
        return data.batch(params["batch_size"])

    return input_fn


def tensors_fn(params):
    """An input_fn of tensors, not of a Dataset."""
    return v1.data.make_one_shot_iterator(train_fn(params)).get_next()


def absolute_error(labels, predictions):
    return {"mae": v1.metrics.mean_absolute_error(labels, predictions)}


def linear(features):
    weight = v1.get_variable("w", [3, 1], initializer=v1.zeros_initializer())
    bias = v1.get_variable("b", [1], initializer=v1.zeros_initializer())
    return tf.matmul(features["x"], weight) + bias


def minimize(loss, params):
    optimizer = v1.train.GradientDescentOptimizer(RATE)
    if params["use_tpu"]:
        optimizer = v1.tpu.CrossShardOptimizer(optimizer)
    return optimizer.minimize(loss, v1.train.get_global_step())


def model_fn(features, labels, mode, params):
    predictions = linear(features)
    if mode == ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode, predictions={"y": predictions})
    loss = tf.reduce_mean((predictions - labels) ** 2)
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=minimize(loss, params) if mode == ModeKeys.TRAIN else None,
        eval_metrics=(absolute_error, [labels, predictions]),
    )


def config_of(folder, replicas, iterations, tpu_config, run_config):
    """Makes the RunConfig of `make`; 0 replicas: one without shards."""
    return tpu.RunConfig(
        model_dir=str(folder),
        tpu_config=tpu.TPUConfig(
            iterations_per_loop=iterations,
            num_shards=replicas or None,
            **(tpu_config or {}),
        ),
        **(run_config or {}),
    )


def make(
    folder,
    replicas=2,
    *,
    model=model_fn,
    iterations=4,
    batch=16,
    tpu_config=None,
    run_config=None,
    **options,
):
    """Makes an estimator; 0 replicas: use_tpu=False."""
    config = config_of(folder, replicas, iterations, tpu_config, run_config)
    sizes = {
        f"{mode}_batch_size": batch for mode in ("train", "eval", "predict")
    }
    defaults = {"config": config, "use_tpu": replicas > 0, **sizes}
    return tpu.TPUEstimator(model, **{**defaults, **options})


def trained(steps, batch=16):
    """Weight and bias after steps of gradient descent, in float64.

    Args:
      steps: How many, or the numbers of their batches.
      batch: The rows of a step.
    """
    weight, bias = np.zeros((3, 1)), np.zeros(1)
    for step in range(steps) if isinstance(steps, int) else steps:
        rows = np.arange(step * batch, (step + 1) * batch) % len(X)
        x, y = X[rows].astype(np.float64), Y[rows]
        error = 2 * (x @ weight + bias - y) / batch
        weight = weight - RATE * x.T @ error
        bias = bias - RATE * error.sum(0)
    return weight, bias
