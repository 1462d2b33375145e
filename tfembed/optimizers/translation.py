"""TensorFlow's own optimizer descriptions, read as ours."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.optimizers.adagrad import Adagrad
from tfembed.optimizers.adagrad_momentum import AdagradMomentum
from tfembed.optimizers.adam import Adam
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
    """The tfembed description of an optimizer; our own pass unchanged.

    Args:
      optimizer: a `tfembed.optimizers.Optimizer`, or one of SGD, Adagrad,
        AdagradMomentum, Adam and FTRL of `tf.tpu.experimental.embedding`.

    Raises:
      tfembed.errors.ArgumentError: anything else.
      tfembed.errors.UnsupportedError: TensorFlow's `CustomOptimizer`, or an
        option that is not in this release.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    if type(optimizer).__name__ == "CustomOptimizer":
        raise errors.UnsupportedError(
            "CustomOptimizer is not in this release; use one of SGD, Adagrad, "
            "AdagradMomentum, Adam and FTRL of tfembed.optimizers."
        )
    for theirs, ours in _TRANSLATIONS:
        if isinstance(optimizer, theirs):
            return _translate(optimizer, ours)
    raise errors.ArgumentError(
        f"{type(optimizer)} is an unsupported optimizer class. Please pass an "
        "instance of one of the optimizer classes under tfembed.optimizers or "
        "tf.tpu.experimental.embedding."
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
