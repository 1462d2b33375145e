"""A residual network with batch normalization and a host_call.

Its shape is that of ResNet's program: UPDATE_OPS, and four tensors that the host
writes as summaries. Statistics of a batch are of each replica.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.estimator.programs.images import (  # noqa: F401 - the same data
    BATCH,
    IMAGES,
    LABELS,
    eval_fn,
    train_fn,
    weights,
)
from tfembed.estimator import ModeKeys, tpu

v1 = tf.compat.v1
RATE, MOMENTUM, DECAY = 0.05, 0.9, 0.9
BLOCKS = 3


def normalize(x, mode, name):
    with v1.variable_scope(name):
        mean = v1.get_variable(
            "mean", [4], initializer=v1.zeros_initializer(), trainable=False
        )
        variance = v1.get_variable(
            "variance", [4], initializer=v1.ones_initializer(), trainable=False
        )
    if mode != ModeKeys.TRAIN:
        return (x - mean) * tf.math.rsqrt(variance + 1e-3)
    now_mean, now_variance = tf.nn.moments(x, [0, 1, 2])
    for moving, now in ((mean, now_mean), (variance, now_variance)):
        update = moving.assign(DECAY * moving + (1 - DECAY) * now)
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
    return (x - now_mean) * tf.math.rsqrt(now_variance + 1e-3)


def logits_of(image, mode):
    x = tf.nn.conv2d(image, weights("stem", [3, 3, 1, 4]), 1, "SAME")
    for block in range(BLOCKS):
        kernel = weights(f"block{block:03d}", [3, 3, 4, 4])
        hidden = normalize(x, mode, f"norm{block}")
        x = x + tf.nn.conv2d(tf.nn.relu(hidden), kernel, 1, "SAME")
    return tf.matmul(tf.reduce_mean(x, [1, 2]), weights("classes", [4, 2]))


def host_call(step, loss, rate, epoch):
    with (
        tf.summary.create_file_writer(FOLDERS[-1]).as_default(),
        tf.summary.record_if(True),
    ):
        for name, value in (("loss", loss), ("rate", rate), ("epoch", epoch)):
            tf.summary.scalar(name, value[0], step=step[0])
    return v1.summary.all_v2_summary_ops()


# Where the host_call of the next graph writes.
FOLDERS: list[str] = []


def model_fn(features, labels, mode, params):
    logits = logits_of(features["image"], mode)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = call = None
    if mode == ModeKeys.TRAIN:
        step = v1.train.get_global_step()
        optimizer = v1.train.MomentumOptimizer(RATE, MOMENTUM)
        if params["use_tpu"]:
            optimizer = v1.tpu.CrossShardOptimizer(optimizer)
        updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        train_op = tf.group(optimizer.minimize(loss, step), *updates)
        values = [step, loss, tf.constant(RATE), tf.cast(step, tf.float32) / 4]
        call = (host_call, [tf.reshape(value, [1]) for value in values])
    return tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, host_call=call
    )


def losses_of_towers(replicas, steps):
    """The same training as a plain loop over towers, in eager TensorFlow."""
    names = {"stem": [3, 3, 1, 4], "classes": [4, 2]}
    names |= {f"block{block:03d}": [3, 3, 4, 4] for block in range(BLOCKS)}
    values = {
        name: tf.Variable(
            (np.random.default_rng(len(name)).normal(size=shape) * 0.2).astype(
                np.float32
            )
        )
        for name, shape in names.items()
    }
    velocity = {name: tf.zeros(shape) for name, shape in names.items()}
    found = []
    for step in range(steps):
        rows = np.arange(step * BATCH, (step + 1) * BATCH) % len(IMAGES)
        losses, gradients = [], []
        for part in np.split(rows, replicas):
            with tf.GradientTape() as tape:
                x = tf.nn.conv2d(IMAGES[part], values["stem"], 1, "SAME")
                for block in range(BLOCKS):
                    mean, variance = tf.nn.moments(x, [0, 1, 2])
                    hidden = (x - mean) * tf.math.rsqrt(variance + 1e-3)
                    kernel = values[f"block{block:03d}"]
                    x = x + tf.nn.conv2d(tf.nn.relu(hidden), kernel, 1, "SAME")
                logits = tf.matmul(tf.reduce_mean(x, [1, 2]), values["classes"])
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(
                        LABELS[part], logits
                    )
                )
            losses.append(loss)
            gradients.append(tape.gradient(loss, values))
        for name, value in values.items():
            gradient = sum(g[name] for g in gradients) / replicas
            velocity[name] = MOMENTUM * velocity[name] + gradient
            value.assign_sub(RATE * velocity[name])
        found.append(float(sum(losses)) / replicas)
    return found
