"""Converts TensorFlow's optimizer descriptions to tfembed's."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.optimizers import private
from tfembed.optimizers.adagrad import Adagrad
from tfembed.optimizers.adagrad_momentum import AdagradMomentum
from tfembed.optimizers.adam import Adam
from tfembed.optimizers.custom_optimizer import CustomOptimizer
from tfembed.optimizers.ftrl import FTRL
from tfembed.optimizers.interface import Optimizer
from tfembed.optimizers.sgd import SGD

__all__ = ["from_tensorflow"]

_theirs = tf.tpu.experimental.embedding

_TRANSLATIONS: tuple[tuple[type, type[Optimizer]], ...] = (
    (_theirs.SGD, SGD),
    (_theirs.Adagrad, Adagrad),
    (_theirs.AdagradMomentum, AdagradMomentum),
    (_theirs.Adam, Adam),
    (_theirs.FTRL, FTRL),
)


def from_tensorflow(optimizer: object) -> Optimizer:
    """Converts an optimizer to a tfembed description; keeps tfembed's own.

    Args:
      optimizer: a `tfembed.optimizers.Optimizer`, or one of SGD, Adagrad,
        AdagradMomentum, Adam, FTRL and CustomOptimizer of
        `tf.tpu.experimental.embedding`.

    Raises:
      tfembed.errors.ArgumentError: the optimizer has another type.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    # TensorFlow 2.16 has no CustomOptimizer.
    if type(optimizer).__name__ == "CustomOptimizer":
        return _translate_custom(optimizer)
    for theirs, ours in _TRANSLATIONS:
        if isinstance(optimizer, theirs):
            return _translate(optimizer, ours)
    raise errors.ArgumentError(
        f"{type(optimizer)} is an unsupported optimizer class. Please pass an "
        "instance of one of the optimizer classes under tfembed.optimizers or "
        f"tf.tpu.experimental.embedding.{_hint(optimizer)}"
    )


def _hint(optimizer: object) -> str:
    """Names the tfembed rule for a Keras optimizer, or for its class."""
    name = type(optimizer).__name__
    if isinstance(optimizer, type):
        name = optimizer.__name__
    if isinstance(optimizer, str):
        name = optimizer
    for _, ours in _TRANSLATIONS:
        if ours.__name__.lower() == name.lower():
            return (
                f" tfembed.{ours.__name__}(...) has that name; its "
                "documentation has the formula."
            )
    return ""


def _translate_custom(optimizer: Any) -> CustomOptimizer:
    names, initializers = private.slots_of(optimizer)
    return CustomOptimizer(
        optimizer.custom_computation,
        optimizer.learning_rate,
        names,
        initializers,
        optimizer.hyperparameters,
        getattr(optimizer, "slot_dims", None),  # Since TensorFlow 2.21.
    )


def _translate(optimizer: Any, ours: type[Optimizer]) -> Optimizer:
    arguments = {
        field.name: getattr(optimizer, field.name)
        for field in dataclasses.fields(ours)  # type: ignore[arg-type]  # All of ours are dataclasses.
        if hasattr(optimizer, field.name)
    }
    clip = (
        optimizer.clip_gradient_min,
        optimizer.clip_gradient_max,
    )
    if clip != (None, None):
        arguments["clipvalue"] = clip
    return ours(**arguments)
