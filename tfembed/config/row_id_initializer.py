"""Rows that say which row they are, for tests of programs."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

__all__ = ["RowIdInitializer"]


@dataclasses.dataclass(frozen=True)
class RowIdInitializer:
    """Fills row i of a table with a vocabulary with the number i + offset.

    As `tf.tpu.experimental.embedding.RowIdInitializer`, which is accepted in its
    place.

    Attributes:
      offset: what row 0 is filled with.
    """

    offset: int = 0

    def __call__(self, shape: Any, dtype: tf.DType) -> tf.Tensor:
        """Rows of `shape` [vocabulary_size, dim]."""
        rows = tf.range(self.offset, self.offset + shape[0])
        return tf.broadcast_to(tf.cast(rows, dtype)[:, tf.newaxis], shape)
