"""Norms of summed gradients, and what scales gradients down to a limit."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

__all__ = ["shrink_factor", "with_finite_rows"]


def with_finite_rows(sums: tf.Tensor) -> tf.Tensor:
    """`sums` [n, dim] with zeros for rows that have a NaN or an infinity.

    Such rows are skipped or refused, or train by themselves: the norm that other
    rows are scaled by leaves them out.
    """
    is_finite = tf.reduce_all(tf.math.is_finite(sums), axis=-1, keepdims=True)
    return tf.where(is_finite, sums, tf.zeros_like(sums))


def shrink_factor(gradients: Sequence[tf.Tensor], limit: float) -> tf.Tensor:
    """limit / norm where the norm of all gradients together is above it, else 1.

    Args:
      gradients: gradients of any shapes; one at least.
      limit: the largest Euclidean norm.
    """
    norm = tf.linalg.global_norm(
        [tf.cast(gradient, tf.float32) for gradient in gradients]
    )
    return tf.where(norm > limit, limit / norm, tf.ones_like(norm))
