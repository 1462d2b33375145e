"""Activations and their gradients, between the user's shapes and the ops'."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl import logging

from tfembed import errors

__all__ = ["op_gradient", "with_shape"]


def with_shape(tensor: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """`tensor`, known to have as many elements as `shape`, in that shape."""
    if tensor.shape.rank == shape.rank:
        tensor.set_shape(shape)
        return tensor
    return tf.reshape(tensor, shape)


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
      gradient: with respect to a feature's activations; None for 0.
      shape: the activations'.
      sequence_length: of the feature, 0 where a sample's ids are combined.
      path: what errors call the feature.
      keeps_shape: whether it stays in the shape of the activations.

    Returns:
      float32 [B, dim], or [B, sequence_length, dim].

    Raises:
      tfembed.errors.ArgumentError: no tensor, or another shape.
    """
    if gradient is None:
        logging.warning(
            "No gradient passed for feature %s, sending zero gradient. This "
            "may not be correct behavior for certain optimizers like Adam.",
            path,
        )
        gradient = tf.zeros(shape)
    if not isinstance(gradient, tf.Tensor):
        raise errors.ArgumentError(
            f"found non-tensor type: {type(gradient)} at path {path}."
        )
    if gradient.shape != shape:
        raise errors.ArgumentError(
            f"Found gradient of shape {gradient.shape} at path {path}. "
            f"Expected shape {shape}."
        )
    if keeps_shape:
        return tf.cast(gradient, tf.float32)
    rows = shape[:-1].num_elements()
    lead = [rows]
    if sequence_length:
        lead = [rows // sequence_length, sequence_length]
    return with_shape(
        tf.cast(gradient, tf.float32), tf.TensorShape([*lead, shape[-1]])
    )
