"""A classifier of sentences with two layers of attention, fine-tuned.

Its shape is that of BERT's run_classifier: an optimizer of its own with slots of
get_variable, a scaffold_fn that reads a checkpoint, metrics with weights of real
examples, and a global step that the model_fn assigns.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfembed.estimator import ModeKeys, tpu

v1 = tf.compat.v1

BATCH = 16
VOCABULARY, LENGTH, WIDTH, HEADS = 30, 6, 8, 2
_random = np.random.default_rng(3)
TOKENS = _random.integers(0, VOCABULARY, (64, LENGTH)).astype(np.int32)
LABELS = (TOKENS[:, 0] > TOKENS[:, -1]).astype(np.int32)


class AdamWeightDecay(v1.train.Optimizer):
    """Adam whose decay of weights does not go through the moments."""

    def __init__(self, rate, decay=0.01):
        super().__init__(False, "AdamWeightDecay")
        self._rate, self._decay = rate, decay

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        updates = []
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            slots = [
                v1.get_variable(
                    f"{variable.op.name}/{slot}",
                    variable.shape,
                    trainable=False,
                    initializer=v1.zeros_initializer(),
                )
                for slot in ("adam_m", "adam_v")
            ]
            gradient = tf.convert_to_tensor(gradient)
            mean = 0.9 * slots[0] + 0.1 * gradient
            square = 0.999 * slots[1] + 0.001 * tf.square(gradient)
            change = mean / (tf.sqrt(square) + 1e-3) + self._decay * variable
            updates += [
                variable.assign(variable - self._rate * change),
                slots[0].assign(mean),
                slots[1].assign(square),
            ]
        return tf.group(*updates)


def _data():
    return tf.data.Dataset.from_tensor_slices(
        ({"tokens": TOKENS, "is_real": np.ones(64, np.float32)}, LABELS)
    )


def train_fn(params):
    return _data().repeat().batch(params["batch_size"], drop_remainder=True)


def eval_fn(params):
    return _data().take(50).batch(params["batch_size"])


def matrix(name, rows, columns):
    values = np.random.default_rng(rows + columns).normal(size=(rows, columns))
    return v1.get_variable(
        name, initializer=(values * 0.3).astype(np.float32), use_resource=True
    )


def attention(states):
    size = WIDTH // HEADS

    def heads(name):
        mixed = tf.tensordot(states, matrix(name, WIDTH, WIDTH), 1)
        split = tf.reshape(mixed, [-1, LENGTH, HEADS, size])
        return tf.transpose(split, [0, 2, 1, 3])

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = tf.matmul(query, key, transpose_b=True) / size**0.5
    mixed = tf.matmul(tf.nn.softmax(scores), value)
    return tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, LENGTH, WIDTH])


def normalized(states):
    mean, variance = tf.nn.moments(states, [-1], keepdims=True)
    return (states - mean) * tf.math.rsqrt(variance + 1e-5)


def metric_fn(losses, labels, logits, is_real):
    return {
        "accuracy": v1.metrics.accuracy(
            labels, tf.argmax(logits, -1, tf.int32), weights=is_real
        ),
        "mean_loss": v1.metrics.mean(losses, weights=is_real),
    }


def model_fn(features, labels, mode, params):
    table = matrix("embeddings", VOCABULARY, WIDTH)
    states = tf.gather(table, features["tokens"])
    for layer in range(2):
        with v1.variable_scope(f"layer_{layer}"):
            states = normalized(states + attention(states))
            hidden = tf.tensordot(states, matrix("in", WIDTH, 16), 1)
            hidden = tf.tensordot(
                tf.nn.gelu(hidden), matrix("out", 16, WIDTH), 1
            )
            states = normalized(states + hidden)
    logits = tf.matmul(states[:, 0], matrix("classes", WIDTH, 2))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    loss = tf.reduce_mean(losses)
    train_op = None
    if mode == ModeKeys.TRAIN:
        optimizer = AdamWeightDecay(0.01)
        if params["use_tpu"]:
            optimizer = v1.tpu.CrossShardOptimizer(optimizer)
        pairs = optimizer.compute_gradients(loss, v1.trainable_variables())
        step = v1.train.get_global_step()
        train_op = tf.group(
            optimizer.apply_gradients(pairs), step.assign(step + 1)
        )
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        eval_metrics=(
            metric_fn,
            [losses, labels, logits, features["is_real"]],
        ),
    )
