"""TensorFlow's own ops, under the names that TFRA has for them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["sparse_fill_empty_rows", "sparse_reshape", "sparse_segment_sum"]


def sparse_segment_sum(
    data: Any,
    indices: Any,
    segment_ids: Any,
    name: str | None = None,
    num_segments: Any = None,
) -> tf.Tensor:
    """Sums the rows `data[indices]` of each segment: TensorFlow's, as it is.

    Args:
      data: numbers [n, ...].
      indices: int32 or int64 [k], rows of `data`.
      segment_ids: int32 or int64 [k], sorted.
      name: the name of the op.
      num_segments: how many there are; None: the last segment id and one.

    Returns:
      [num_segments, ...], zeros for a segment without rows.
    """
    return tf.sparse.segment_sum(data, indices, segment_ids, num_segments, name)


def sparse_fill_empty_rows(
    sp_input: tf.SparseTensor, default_value: Any, name: str | None = None
) -> tuple[tf.SparseTensor, tf.Tensor]:
    """Puts `default_value` into each empty row: TensorFlow's, as it is.

    Args:
      sp_input: [n, m].
      default_value: a scalar of its dtype.
      name: the name of the op.

    Returns:
      The filled tensor, and bool [n], which rows were empty.
    """
    return tf.sparse.fill_empty_rows(sp_input, default_value, name)


def sparse_reshape(
    sp_input: tf.SparseTensor, shape: Any, name: str | None = None
) -> tf.SparseTensor:
    """Gives `sp_input` another shape of as many elements: TensorFlow's."""
    return tf.sparse.reshape(sp_input, shape, name)
