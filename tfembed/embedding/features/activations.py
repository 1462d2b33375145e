"""Activations and their gradients, between the user's shapes and the ops'."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import tensorflow as tf

from tfembed import errors

__all__ = ["check_gradient", "op_gradient", "with_shape"]

_LOG = logging.getLogger(__name__)


def with_shape(tensor: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """`tensor`, known to have as many elements as `shape`, in that shape."""
    if tensor.shape.rank == shape.rank:
        tensor.set_shape(shape)
        return tensor
    return tf.reshape(tensor, shape)


def check_gradient(gradient: Any, shape: tf.TensorShape, path: str) -> None:
    """Checks a gradient with respect to a feature's activations.

    Args:
      gradient: a tensor, or None.
      shape: the activations'; where its rank is not known yet, all fit.
      path: the feature's name in errors.

    Raises:
      tfembed.errors.ArgumentError: no tensor, or another shape.
      tfembed.errors.DtypeError: no real numbers.
    """
    if gradient is None:
        return
    if not isinstance(gradient, tf.Tensor):
        raise errors.ArgumentError(
            f"found non-tensor type: {type(gradient)} at path {path}."
        )
    if shape.rank is not None and gradient.shape != shape:
        raise errors.ArgumentError(
            f"Found gradient of shape {gradient.shape} at path {path}. "
            f"Expected shape {shape}."
        )
    if not (gradient.dtype.is_floating or gradient.dtype.is_integer):
        raise errors.DtypeError(
            f"Found gradient of dtype {gradient.dtype.name} at path {path}. "
            "Expected floats."
        )


def op_gradient(
    gradient: Any,
    shape: tf.TensorShape,
    *,
    sequence_length: int,
    path: str,
    keeps_shape: bool = False,
) -> tf.Tensor:
    """A gradient as the update op takes it.

    Args:
      gradient: the gradient with respect to a feature's activations, which
        `check_gradient` has seen; None for 0.
      shape: the activations'.
      sequence_length: the sequence length of the feature, 0 where a sample's ids
        are combined.
      path: the feature's name in errors.
      keeps_shape: whether it stays in the shape of the activations.

    Returns:
      float32 [B, dim], or [B, sequence_length, dim].
    """
    if gradient is None:
        _warn_of_no_gradient(path)
        gradient = tf.zeros(shape)
    if keeps_shape:
        return tf.cast(gradient, tf.float32)
    rows = shape[:-1].num_elements()
    lead = [rows]
    if sequence_length:
        lead = [rows // sequence_length, sequence_length]
    return with_shape(
        tf.cast(gradient, tf.float32), tf.TensorShape([*lead, shape[-1]])
    )


def _warn_of_no_gradient(path: str) -> None:
    """Says that a feature trains nothing: where TensorFlow does, and Keras."""
    text = (
        f"No gradient passed for feature {path}, sending zero gradient. This "
        "may not be correct behavior for certain optimizers like Adam."
    )
    _LOG.warning("%s", text)
    warnings.warn(text, stacklevel=2)
