"""Steps of TPUEstimator's model_fns that the proof follows to the TPU.

A step takes one replica's features and labels, and returns its loss; the train_op
is a condition of the loss. They are written as programs of TensorFlow 1 are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["MODELS", "Model", "batches"]

v1 = tf.compat.v1
ROWS, WORDS, WIDTH, HEADS, VOCABULARY = 8, 6, 16, 2, 50

# Whether the model adds noise that no other program can draw again.
_DROPOUT = 0.1


@dataclasses.dataclass(frozen=True)
class Model:
    """A step.

    Attributes:
      name: in tables.
      step: of features and labels; returns the loss.
      features: their dtype and the shape of a replica's.
      is_compared: whether the step draws no random numbers.
    """

    name: str
    step: Callable[[Any, Any], Any]
    features: tuple[tf.DType, tuple[int, ...]]
    is_compared: bool = True

    def specs(self) -> list[tf.TensorSpec]:
        """Of a replica's features and labels."""
        dtype, shape = self.features
        return [tf.TensorSpec(shape, dtype), tf.TensorSpec([ROWS, 1])]


def batches(
    model: Model, replicas: int, steps: int
) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """For each step, features and labels of each replica."""
    draw = np.random.default_rng(5)
    dtype, shape = model.features

    def features() -> np.ndarray:
        if dtype.is_integer:
            return draw.integers(0, VOCABULARY, shape, dtype.as_numpy_dtype)
        return draw.standard_normal(shape, dtype.as_numpy_dtype)

    return [
        [
            (features(), draw.standard_normal((ROWS, 1), np.float32))
            for _ in range(replicas)
        ]
        for _ in range(steps)
    ]


def _dense(x: Any, width: int, name: str, *, has_bias: bool = True) -> Any:
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [x.shape[-1], width])
        if not has_bias:
            return tf.tensordot(x, kernel, 1)
        bias = v1.get_variable(
            "bias", [width], initializer=v1.zeros_initializer()
        )
    return tf.tensordot(x, kernel, 1) + bias


def _loss(predicted: Any, labels: Any) -> Any:
    return tf.reduce_mean(tf.square(predicted - labels))


def _minimized(loss: Any, optimizer: Any) -> Any:
    train = v1.tpu.CrossShardOptimizer(optimizer).minimize(
        loss, v1.train.get_or_create_global_step()
    )
    with tf.control_dependencies([train]):
        return tf.identity(loss)


def _dense_adam(x: Any, y: Any) -> Any:
    hidden = tf.nn.relu(_dense(x, 8, "hidden"))
    rate = v1.train.exponential_decay(
        0.1, v1.train.get_or_create_global_step(), 2, 0.5
    )
    return _minimized(
        _loss(_dense(hidden, 1, "out"), y), v1.train.AdamOptimizer(rate)
    )


def _normalized(x: Any, y: Any) -> Any:
    with v1.variable_scope("norm"):
        shape = [x.shape[-1]]
        gamma = v1.get_variable(
            "gamma", shape, initializer=v1.ones_initializer()
        )
        beta = v1.get_variable(
            "beta", shape, initializer=v1.zeros_initializer()
        )
        moving = [
            v1.get_variable(name, shape, initializer=make(), trainable=False)
            for name, make in (
                ("moving_mean", v1.zeros_initializer),
                ("moving_variance", v1.ones_initializer),
            )
        ]
    found = tf.nn.moments(x, [0])
    updates = [
        v1.assign_sub(variable, 0.1 * (variable - value))
        for variable, value in zip(moving, found)
    ]
    normal = tf.nn.batch_normalization(x, *found, beta, gamma, 1e-3)
    with tf.control_dependencies(updates):
        return _minimized(
            _loss(_dense(normal, 1, "out"), y),
            v1.train.MomentumOptimizer(0.05, 0.9),
        )


def _attended(x: Any, rate: float) -> Any:
    def heads(name: str) -> Any:
        # A key's bias changes nothing: Adam would follow its rounding errors.
        parts = tf.reshape(
            _dense(x, WIDTH, name, has_bias=name != "key"),
            [ROWS, WORDS, HEADS, WIDTH // HEADS],
        )
        return tf.transpose(parts, [0, 2, 1, 3])

    scores = tf.matmul(heads("query"), heads("key"), transpose_b=True)
    weights = tf.nn.softmax(scores / np.sqrt(WIDTH / HEADS))
    if rate:
        weights = tf.nn.dropout(weights, rate=rate)
    found = tf.transpose(tf.matmul(weights, heads("value")), [0, 2, 1, 3])
    return _dense(tf.reshape(found, [ROWS, WORDS, WIDTH]), WIDTH, "mixed")


def _layer_norm(x: Any, name: str) -> Any:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    with v1.variable_scope(name):
        gamma = v1.get_variable(
            "gamma", [WIDTH], initializer=v1.ones_initializer()
        )
        beta = v1.get_variable(
            "beta", [WIDTH], initializer=v1.zeros_initializer()
        )
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-6)


def _transformer(rate: float) -> Callable[[Any, Any], Any]:
    def step(words: Any, y: Any) -> Any:
        table = v1.get_variable("words", [VOCABULARY, WIDTH])
        x = tf.nn.embedding_lookup(table, words)
        for layer in range(2):
            with v1.variable_scope(f"layer_{layer}"):
                x = _layer_norm(x + _attended(x, rate), "first")
                inner = tf.nn.gelu(_dense(x, 2 * WIDTH, "inner"))
                inner = _dense(inner, WIDTH, "outer")
                if rate:
                    inner = tf.nn.dropout(inner, rate=rate)
                x = _layer_norm(x + inner, "second")
        loss = _loss(_dense(x[:, 0], 1, "out"), y)
        optimizer = v1.tpu.CrossShardOptimizer(
            v1.train.AdamOptimizer(0.01, epsilon=1e-6)
        )
        variables = v1.trainable_variables()
        # As BERT does: each replica clips its own gradients.
        clipped, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
        train = optimizer.apply_gradients(
            list(zip(clipped, variables)),
            v1.train.get_or_create_global_step(),
        )
        with tf.control_dependencies([train]):
            return tf.identity(loss)

    return step


_NUMBERS = (tf.float32, (ROWS, 4))
_WORDS = (tf.int32, (ROWS, WORDS))
MODELS = (
    Model("dense, Adam", _dense_adam, _NUMBERS),
    Model("batch normalization, Momentum", _normalized, _NUMBERS),
    Model("transformer, clipped, Adam", _transformer(0.0), _WORDS),
    Model(
        "transformer, dropout",
        _transformer(_DROPOUT),
        _WORDS,
        is_compared=False,
    ),
)
