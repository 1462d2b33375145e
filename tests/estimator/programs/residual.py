"""ResNet-8: batch normalization, averaged weights and a host_call.

Its shape is that of ResNet's program: UPDATE_OPS, an exponential moving average
whose values an evaluation reads through a Saver of its own, four tensors that
the host writes as summaries, and a plain EstimatorSpec for predictions.
Statistics of a batch are of each replica.
"""

from __future__ import annotations

import zlib

import numpy as np
import tensorflow as tf

from tests.estimator.programs.images import (  # noqa: F401 - the same data
    BATCH,
    IMAGES,
    LABELS,
    accuracy,
    eval_fn,
    predict_fn,
    train_fn,
)
from tfembed.estimator import EstimatorSpec, ModeKeys, export, tpu

v1 = tf.compat.v1
RATE, MOMENTUM, DECAY, AVERAGING, EPSILON = 0.05, 0.9, 0.9, 0.8, 1e-3
WIDTH = 4
# Each of three blocks has two convolutions, with a normalization before each.
CONVOLUTIONS = [f"block{block}/{half}" for block in range(3) for half in "ab"]
SHAPES = {"stem": [3, 3, 1, WIDTH], "classes": [WIDTH, 2]}
SHAPES |= {name: [3, 3, WIDTH, WIDTH] for name in CONVOLUTIONS}


def initial(name):
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return (random.normal(size=SHAPES[name]) * 0.2).astype(np.float32)


def logits_of(image, get, normalize):
    """The model; `normalize(x, name)` is its batch normalization."""
    x = tf.nn.conv2d(image, get("stem"), 1, "SAME")
    for first, second in zip(CONVOLUTIONS[::2], CONVOLUTIONS[1::2]):
        hidden = x
        for name in (first, second):
            hidden = tf.nn.relu(normalize(hidden, name))
            hidden = tf.nn.conv2d(hidden, get(name), 1, "SAME")
        x = x + hidden
    return tf.matmul(tf.reduce_mean(x, [1, 2]), get("classes"))


def scaled(x, mean, variance):
    return (x - mean) * tf.math.rsqrt(variance + EPSILON)


def normalization(is_training):
    def normalize(x, name):
        mean, variance = (
            v1.get_variable(
                f"{name}/{moment}",
                [WIDTH],
                initializer=v1.constant_initializer(value),
                trainable=False,
                use_resource=True,
            )
            for moment, value in (("mean", 0.0), ("variance", 1.0))
        )
        if not is_training:
            return scaled(x, mean, variance)
        now = tf.nn.moments(x, [0, 1, 2])
        for moving, value in zip((mean, variance), now):
            update = moving.assign(DECAY * moving + (1 - DECAY) * value)
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
        return scaled(x, *now)

    return normalize


def host_call(step, loss, rate, epoch):
    """Writes summaries, of each step of a loop."""
    with (
        tf.summary.create_file_writer(FOLDERS[-1]).as_default(),
        tf.summary.record_if(True),
    ):
        for name, value in (("loss", loss), ("rate", rate), ("epoch", epoch)):
            tf.summary.scalar(name, value[0], step=step[0])
    return v1.summary.all_v2_summary_ops()


# Where the host_call of the next graph writes.
FOLDERS: list[str] = []


def averages_of(step):
    """The moving average, and the variables that have one."""
    average = tf.train.ExponentialMovingAverage(AVERAGING, num_updates=step)
    return average, [v for v in v1.global_variables() if v is not step]


def train_spec(loss, params):
    step = v1.train.get_global_step()
    average, averaged = averages_of(step)
    optimizer = v1.train.MomentumOptimizer(RATE, MOMENTUM)
    if params["use_tpu"]:
        optimizer = v1.tpu.CrossShardOptimizer(optimizer)
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.minimize(loss, step)
    with tf.control_dependencies([train_op]):
        train_op = average.apply(averaged)
    values = [step, loss, tf.constant(RATE), tf.cast(step, tf.float32) / 4]
    return tpu.TPUEstimatorSpec(
        ModeKeys.TRAIN,
        loss=loss,
        train_op=train_op,
        host_call=(host_call, [tf.reshape(value, [1]) for value in values]),
    )


def eval_scaffold():
    average, averaged = averages_of(v1.train.get_global_step())
    names = {average.average_name(v): v for v in averaged}
    names["global_step"] = v1.train.get_global_step()
    return v1.train.Scaffold(saver=v1.train.Saver(names))


def model_fn(features, labels, mode, params):
    def get(name):
        return v1.get_variable(
            name, initializer=initial(name), use_resource=True
        )

    image = features["image"]
    logits = logits_of(image, get, normalization(mode == ModeKeys.TRAIN))
    if mode == ModeKeys.PREDICT:
        predictions = {"class": tf.argmax(logits, -1)}
        return EstimatorSpec(
            mode,
            predictions=predictions,
            export_outputs={"classify": export.PredictOutput(predictions)},
        )
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == ModeKeys.TRAIN:
        return train_spec(loss, params)
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        eval_metrics=(accuracy, [labels, logits]),
        scaffold_fn=eval_scaffold,
    )


def receiver():
    image = v1.placeholder(tf.float32, [None, *IMAGES.shape[1:]])
    return export.ServingInputReceiver({"image": image}, {"image": image})


@tf.function(autograph=False)
def _tower(images, labels, weights):
    """The loss, the gradients and the statistics of a replica's rows."""
    found = {}

    def normalize(x, name):
        found[name] = tf.nn.moments(x, [0, 1, 2])
        return scaled(x, *found[name])

    with tf.GradientTape() as tape:
        tape.watch(weights)
        logits = logits_of(images, weights.get, normalize)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        )
    return loss, tape.gradient(loss, weights), found


class Towers:
    """The same training as a plain loop over towers, outside of estimators."""

    def __init__(self, replicas):
        self._replicas = replicas
        self.weights = {name: tf.Variable(initial(name)) for name in SHAPES}
        self.velocity = {name: tf.zeros(SHAPES[name]) for name in SHAPES}
        self.statistics = {
            name: [tf.zeros(WIDTH), tf.ones(WIDTH)] for name in CONVOLUTIONS
        }
        self.averages = {name: tf.constant(initial(name)) for name in SHAPES}
        self.averaged_statistics = dict(self.statistics)
        self._step = 0

    def _tower(self, rows, is_first):
        loss, gradients, found = _tower(
            tf.constant(IMAGES[rows]),
            tf.constant(LABELS[rows]),
            {name: value.read_value() for name, value in self.weights.items()},
        )
        if is_first:  # The statistics of the first replica are kept.
            for name, now in found.items():
                self.statistics[name] = [
                    DECAY * old + (1 - DECAY) * new
                    for old, new in zip(self.statistics[name], now)
                ]
        return loss, gradients

    def train(self):
        """Takes a step and returns the mean of the towers' losses."""
        rows = np.arange(self._step * BATCH, (self._step + 1) * BATCH)
        parts = np.split(rows % len(IMAGES), self._replicas)
        found = [self._tower(part, not i) for i, part in enumerate(parts)]
        for name, value in self.weights.items():
            gradient = sum(g[name] for _, g in found) / self._replicas
            self.velocity[name] = MOMENTUM * self.velocity[name] + gradient
            value.assign_sub(RATE * self.velocity[name])
        self._step += 1
        rate = 1 - min(AVERAGING, (1 + self._step) / (10 + self._step))
        for name, value in self.weights.items():
            self.averages[name] += rate * (value - self.averages[name])
        for name, values in self.statistics.items():
            self.averaged_statistics[name] = [
                old + rate * (new - old)
                for old, new in zip(self.averaged_statistics[name], values)
            ]
        return float(sum(loss for loss, _ in found)) / self._replicas

    def evaluate(self):
        """The loss of all images, by the averages."""
        logits = logits_of(
            IMAGES,
            self.averages.get,
            lambda x, name: scaled(x, *self.averaged_statistics[name]),
        )
        return float(
            tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, logits)
            )
        )
