"""A convolutional classifier of small images, in the shape of an MNIST program."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfembed.estimator import ModeKeys, tpu

v1 = tf.compat.v1

BATCH = 16
_random = np.random.default_rng(2)
IMAGES = _random.normal(size=(64, 8, 8, 1)).astype(np.float32)
LABELS = (IMAGES[:, :4].sum((1, 2, 3)) > IMAGES[:, 4:].sum((1, 2, 3))).astype(
    np.int64
)


def _data(params):
    return tf.data.Dataset.from_tensor_slices(({"image": IMAGES}, LABELS))


def train_fn(params):
    return (
        _data(params).repeat().batch(params["batch_size"], drop_remainder=True)
    )


def predict_fn(params):
    return _data(params).take(10).batch(params["batch_size"])


def eval_fn(params):
    return _data(params).batch(params["batch_size"])


def weights(name, shape, scale=0.2):
    values = np.random.default_rng(len(name)).normal(size=shape) * scale
    return v1.get_variable(
        name, initializer=values.astype(np.float32), use_resource=True
    )


def accuracy(labels, logits):
    return {"accuracy": v1.metrics.accuracy(labels, tf.argmax(logits, -1))}


def model_fn(features, labels, mode, params):
    hidden = tf.nn.relu(
        tf.nn.conv2d(
            features["image"], weights("conv", [3, 3, 1, 4]), 2, "SAME"
        )
    )
    hidden = tf.reshape(hidden, [-1, 4 * 4 * 4])
    logits = tf.matmul(hidden, weights("dense", [64, 2]))
    if mode == ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(
            mode, predictions={"class": tf.argmax(logits, -1)}
        )
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = None
    if mode == ModeKeys.TRAIN:
        optimizer = v1.train.MomentumOptimizer(0.05, 0.9)
        if params["use_tpu"]:
            optimizer = v1.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        eval_metrics=(accuracy, [labels, logits]),
    )
