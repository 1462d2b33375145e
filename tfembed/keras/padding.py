"""Which ids are padding: an operation of Keras, so that models can hold it."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

__all__ = ["PaddingMask", "padding_of"]


def padding_of(dtype: tf.DType) -> tf.Tensor:
    """The id that is padding: 0, or "" of strings."""
    return tf.constant("" if dtype == tf.string else 0, dtype)


@keras.saving.register_keras_serializable(package="tfembed.keras")
class PaddingMask(keras.Operation):
    """True for ids that are no padding, strings too."""

    def call(self, ids: Any) -> tf.Tensor:
        """Booleans of the ids' shape."""
        return tf.not_equal(ids, padding_of(ids.dtype))

    def compute_output_spec(self, ids: Any) -> Any:
        """Booleans of the ids' shape."""
        return keras.KerasTensor(ids.shape, "bool")
