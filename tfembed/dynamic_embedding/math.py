"""TensorFlow's segment and sparse ops, under TFRA's names."""

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
    """Sums the rows `data[indices]` per segment; calls `tf.sparse.segment_sum`.

    Args:
      data: numbers [n, ...].
      indices: int32 or int64 [k], rows of `data`.
      segment_ids: int32 or int64 [k], sorted.
      name: the name of the op.
      num_segments: the number of segments; None: the last segment id + 1.

    Returns:
      [num_segments, ...], zeros for a segment without rows.
    """
    return tf.sparse.segment_sum(data, indices, segment_ids, num_segments, name)


def sparse_fill_empty_rows(
    sp_input: tf.SparseTensor, default_value: Any, name: str | None = None
) -> tuple[tf.SparseTensor, tf.Tensor]:
    """Fills empty rows with `default_value`; calls `tf.sparse.fill_empty_rows`.

    Args:
      sp_input: [n, m].
      default_value: a scalar of its dtype.
      name: the name of the op.

    Returns:
      The filled tensor, and bool [n]: whether each row was empty.
    """
    return tf.sparse.fill_empty_rows(sp_input, default_value, name)


def sparse_reshape(
    sp_input: tf.SparseTensor, shape: Any, name: str | None = None
) -> tf.SparseTensor:
    """Reshapes `sp_input`; calls `tf.sparse.reshape`."""
    return tf.sparse.reshape(sp_input, shape, name)
