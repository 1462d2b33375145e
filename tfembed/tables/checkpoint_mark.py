"""What tells TensorFlow's checkpoints that a table is, or was, among them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

__all__ = ["CheckpointMark"]


class CheckpointMark(tf.__internal__.tracking.Trackable):
    """A tensor beside a table: its width.

    Savers of our own write tables, and what they write does not count when
    TensorFlow compares a checkpoint with the program's objects: without a tensor
    of TensorFlow's own, `assert_consumed` and `assert_existing_objects_matched`
    would pass over tables that were not restored.

    Args:
      table: a `ShardedTable`, which holds the mark.
    """

    def __init__(self, table: Any) -> None:
        self._table = weakref.ref(table)

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        table = self._table()
        return {"width": tf.constant(table.dim if table else 0, tf.int64)}

    def _restore_from_tensors(self, tensors: Mapping[str, tf.Tensor]) -> None:
        """The table's own restore compares widths."""

    def __repr__(self) -> str:
        return f"<mark of {self._table()!r}>"
