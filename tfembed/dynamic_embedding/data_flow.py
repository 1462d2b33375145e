"""TensorFlow's own ops, under the names that TFRA has for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

__all__ = ["dynamic_partition", "dynamic_stitch"]


def dynamic_partition(
    data: Any, partitions: Any, num_partitions: int, name: str | None = None
) -> list[tf.Tensor]:
    """Deals the entries of `data` to parts: TensorFlow's, as it is.

    Args:
      data: [n..., ...].
      partitions: int32 [n...], each entry's part.
      num_partitions: how many there are.
      name: the name of the op.

    Returns:
      The parts, [k, ...] each.
    """
    return tf.dynamic_partition(data, partitions, num_partitions, name)


def dynamic_stitch(
    indices: Sequence[Any],
    data: Sequence[Any],
    use_fast: bool = True,
    name: str | None = None,
) -> tf.Tensor:
    """Puts parts together again: TensorFlow's, as it is.

    Args:
      indices: int32 tensors, the positions of the entries of each of `data`.
      data: the parts.
      use_fast: accepted for TFRA's sake.
      name: the name of the op.
    """
    del use_fast
    return tf.dynamic_stitch(indices, data, name)
