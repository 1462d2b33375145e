"""TensorFlow's partition and stitch ops, under TFRA's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

__all__ = ["dynamic_partition", "dynamic_stitch"]


def dynamic_partition(
    data: Any, partitions: Any, num_partitions: int, name: str | None = None
) -> list[tf.Tensor]:
    """Splits the entries of `data` into parts; calls `tf.dynamic_partition`.

    Args:
      data: [n..., ...].
      partitions: int32 [n...], each entry's part.
      num_partitions: the number of parts.
      name: the name of the op.

    Returns:
      The parts, each [k, ...].
    """
    return tf.dynamic_partition(data, partitions, num_partitions, name)


def dynamic_stitch(
    indices: Sequence[Any],
    data: Sequence[Any],
    use_fast: bool = True,
    name: str | None = None,
) -> tf.Tensor:
    """Merges parts; calls `tf.dynamic_stitch`.

    Args:
      indices: int32 tensors, the positions of each part's entries in the
        result.
      data: the parts.
      use_fast: accepted for TFRA's sake.
      name: the name of the op.
    """
    del use_fast
    return tf.dynamic_stitch(indices, data, name)
