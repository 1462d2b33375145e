"""Wraps optimizers of other libraries, each by its family."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.foreign_optimizers import private
from tfembed.foreign_optimizers.keras_family import WrappedKeras
from tfembed.foreign_optimizers.v1_family import WrappedV1
from tfembed.foreign_optimizers.v2_family import WrappedV2
from tfembed.foreign_optimizers.wrapped_optimizer import (
    WrappedDescription,
    WrappedOptimizer,
)
from tfembed.ops.session_graph import current_graph

__all__ = ["wrap"]


def wrap(opt: Any) -> WrappedOptimizer:
    """Returns `opt` behind the wrapper of its family.

    Raises:
      tfembed.errors.UnsupportedError: `opt` is not an optimizer, is of another
        family, or cannot train tables; the text gives the reason.
    """
    if isinstance(opt, optimizers.Optimizer):
        return WrappedDescription(opt)
    if isinstance(opt, tf.compat.v1.train.Optimizer):
        return WrappedV1(opt)
    if private.base_of(opt) is not None:
        return WrappedV2(opt)
    if _is_of_keras(opt):
        if current_graph() is not None:
            raise errors.UnsupportedError(
                f"{type(opt).__name__} of Keras cannot train tables in a graph of "
                "TensorFlow 1. Use an optimizer of tf.compat.v1.train, of "
                "tf_keras.optimizers.legacy or of tfembed.optimizers there."
            )
        return WrappedKeras(opt)
    raise errors.UnsupportedError(
        f"{type(opt).__module__}.{type(opt).__name__} cannot train tables. Use "
        "an optimizer of Keras 3, of tf_keras, its `legacy` ones too, of "
        "tf.compat.v1.train or of tfembed.optimizers."
    )


def _is_of_keras(opt: Any) -> bool:
    """Whether an optimizer is of Keras 3, or of tf_keras and not legacy."""
    return any(
        cls.__module__.partition(".")[0] in ("keras", "tf_keras")
        and cls.__name__ in ("Optimizer", "BaseOptimizer")
        for cls in type(opt).__mro__
    )
