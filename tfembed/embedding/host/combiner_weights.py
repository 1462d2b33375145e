"""The trained weights of CustomCombiners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed.config.custom_combiner import as_combiner, is_custom
from tfembed.embedding import private
from tfembed.embedding.steps.batch_queue import HOST

__all__ = [
    "make_combiner_weights",
    "train_combiner_weights",
    "usable_gradient",
]


def make_combiner_weights(owner: Any, config: Any) -> Any:
    """The variable [num_weights] of a table's combiner, or None.

    Tracked by `owner` as `<table>/custom_combiner_variables`.

    Args:
      owner: the trackable object that saves it.
      config: the table's TableConfig, named.
    """
    if not is_custom(config.combiner):
        return None
    combiner = as_combiner(config.combiner)
    if combiner.num_weights == 0:
        return None
    shape = [combiner.num_weights]

    def getter(initializer: Callable[..., tf.Tensor], **arguments: Any) -> Any:
        arguments["shape"] = tf.TensorShape(shape)
        with tf.device(HOST):
            return private.single_variable(
                initial_value=lambda: initializer(shape, dtype=tf.float32),
                **arguments,
            )

    return private.add_variable(
        owner,
        name=f"{config.name}/custom_combiner_variables",
        shape=shape,
        dtype=tf.float32,
        initializer=combiner.initializer,
        getter=getter,
        trainable=False,
    )


def usable_gradient(
    config: Any, gradients: list[tf.Tensor], nonfinite: str
) -> tf.Tensor:
    """What the weights of a table's combiner move by: a sum, [num_weights].

    Args:
      config: the table's TableConfig.
      gradients: of its features.
      nonfinite: where the sum has a NaN or an infinity, "skip" makes it 0.

    Raises:
      tf.errors.InvalidArgumentError: it has, and nonfinite="refuse"; when it
        runs.
    """
    total = tf.add_n(gradients)
    if nonfinite == "allow":
        return total
    is_finite = tf.reduce_all(tf.math.is_finite(total))
    if nonfinite == "skip":
        return tf.where(is_finite, total, 0.0)
    check = tf.debugging.assert_equal(
        is_finite,
        True,
        f"The gradient of the weights of table {config.name!r}'s CustomCombiner "
        "has a NaN or an infinity; nothing was changed",
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(total)


def train_combiner_weights(
    config: Any, weights: Any, gradient: tf.Tensor
) -> None:
    """One step of gradient descent."""
    rate = as_combiner(config.combiner).combiner_weights_learning_rate
    rate = tf.cast(rate() if callable(rate) else rate, tf.float32)
    weights.assign_sub(rate * gradient)
