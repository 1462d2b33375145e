"""Packed batches taken apart without a copy."""

from __future__ import annotations

import tensorflow as tf

from tfembed.ops import library

__all__ = ["ALIGNED", "split_aligned"]

# Parts begin at multiples of this many int64: TensorFlow's alignment, 64 bytes.
ALIGNED = 8


def split_aligned(
    values: tf.Tensor, sizes: tf.Tensor, num: int
) -> list[tf.Tensor]:
    """The parts of `values`, as a rule views without a copy.

    Args:
      values: int64 [n]. Part i begins at the sum of the sizes before it, each of
        them rounded up to a multiple of `ALIGNED`.
      sizes: int64 [num].
      num: the number of parts.

    Returns:
      int64 [sizes[i]] each.

    Raises:
      tf.errors.InvalidArgumentError: a size below 0, or parts beyond the values.
    """
    return library.load().tfembed_split_aligned(values, sizes, N=num)
