"""A small linear model in a model_fn, its data, and what NumPy says of it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfembed import estimator as estimator_lib

v1 = tf.compat.v1

RATE = 0.05
BATCHES = 6
ROWS = 4
_DRAWN = np.random.default_rng(7).normal(size=(BATCHES, ROWS, 3))
FEATURES = _DRAWN.astype(np.float32)
LABELS = FEATURES @ np.array([1.0, -2.0, 0.5], np.float32) + 0.25


def input_fn(epochs=None, batches=BATCHES):
    """Gives batches of features and labels in order, again and again."""
    data = tf.data.Dataset.from_tensor_slices(
        ({"x": FEATURES[:batches]}, LABELS[:batches])
    )
    return data.repeat(epochs)


def once():
    return input_fn(epochs=1)


def model_fn(features, labels, mode):
    weight = v1.get_variable("weight", [3], initializer=v1.ones_initializer())
    bias = v1.get_variable("bias", [], initializer=v1.zeros_initializer())
    predictions = tf.linalg.matvec(features["x"], weight) + bias
    if mode == estimator_lib.ModeKeys.PREDICT:
        return estimator_lib.EstimatorSpec(
            mode, predictions={"y": predictions, "twice": 2 * predictions}
        )
    loss = tf.reduce_mean((predictions - labels) ** 2)
    optimizer = v1.train.GradientDescentOptimizer(RATE)
    return estimator_lib.EstimatorSpec(
        mode,
        predictions=predictions,
        loss=loss,
        train_op=optimizer.minimize(
            loss, global_step=v1.train.get_global_step()
        ),
        eval_metric_ops={"mean": v1.metrics.mean(predictions)},
    )


def trained(steps):
    """What NumPy says of weight and bias after so many steps."""
    weight, bias = np.ones(3), 0.0
    for step in range(steps):
        x, y = FEATURES[step % BATCHES], LABELS[step % BATCHES]
        error = x @ weight + bias - y
        weight = weight - RATE * 2 * x.T @ error / ROWS
        bias = bias - RATE * 2 * error.mean()
    return weight, bias


def predicted(steps):
    """What NumPy says the model predicts of all features, in order."""
    weight, bias = trained(steps)
    return (FEATURES @ weight + bias).reshape(-1)


def losses(steps):
    """What NumPy says of each batch's loss after so many steps."""
    weight, bias = trained(steps)
    return ((FEATURES @ weight + bias - LABELS) ** 2).mean(axis=1)


def make(folder, **options):
    """An Estimator of the model that logs and saves little."""
    config = estimator_lib.RunConfig(**{"save_summary_steps": 0, **options})
    return estimator_lib.Estimator(model_fn, str(folder), config=config)
