"""Warnings of steps that XLA cannot compile: tables are on the host."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.keras.private import (
    asked_for_jit,
    model_stepping,
)

__all__ = ["say_why_not_compiled"]

_TOLD: weakref.WeakSet[Any] = weakref.WeakSet()


def say_why_not_compiled(layer: Any) -> None:
    """Warns in the first step of a model with `jit_compile=True`.

    Args:
      layer: the layer that is being called.
    """
    if tf.executing_eagerly():
        return
    model = model_stepping()
    if model is None or model in _TOLD or not asked_for_jit(model):
        return
    _TOLD.add(model)
    warnings.warn(
        f"Steps of model '{model.name}' are not compiled by XLA, in spite of "
        f"jit_compile=True: layer '{layer.name}' has its tables in host memory, "
        "where XLA compiles nothing, and Keras compiles whole steps or none. "
        "To have dense layers compiled, put them into a layer of your own whose "
        "`call` has the decorator @tf.function(jit_compile=True).",
        stacklevel=2,
    )
