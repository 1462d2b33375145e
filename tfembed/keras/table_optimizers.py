"""Optimizers of tables, by the names and objects that Keras has for them."""

from __future__ import annotations

from typing import Any

import keras

from tfembed import errors, optimizers

__all__ = ["table_optimizer"]

_NAMES = ("sgd", "adagrad", "adam", "adamw", "ftrl", "rmsprop", "nadam", "lion")


def table_optimizer(optimizer: Any) -> Any:
    """An optimizer of Keras or of `tfembed.optimizers`; None of None.

    Args:
      optimizer: such an object, a name that Keras knows, or one of TensorFlow's
        descriptions for TPUs.

    Raises:
      tfembed.errors.ArgumentError: an unknown name, or another object.
    """
    if isinstance(optimizer, str):
        try:
            return keras.optimizers.get(optimizer)
        except ValueError as error:
            raise errors.ArgumentError(
                f"`optimizer` must be a name that Keras knows, such as "
                f"{', '.join(repr(name) for name in _NAMES)}; got "
                f"{optimizer!r}."
            ) from error
    if optimizer is None or isinstance(
        optimizer, (keras.optimizers.Optimizer, optimizers.Optimizer)
    ):
        return optimizer
    return optimizers.from_tensorflow(optimizer)
