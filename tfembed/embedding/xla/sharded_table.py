"""A table whose rows are spread over replicas, as one logical tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.embedding import private
from tfembed.embedding.untracked import Untracked

__all__ = ["ShardedTable"]


class ShardedTable(private.Folder):
    """Rows of a stack that belong to one table, or its slots.

    Row r of a shard is row r * replicas + replica of the table. Checkpoints have
    the table as a variable's, so that any engine restores it, with any number of
    replicas.

    Args:
      shards: per replica its variable of the whole stack, [rows, width].
      first: where the table begins in the stack.
      shape: [vocabulary, width].
      name: of the table or slot.
    """

    def __init__(
        self,
        shards: Sequence[Any],
        first: int,
        shape: tuple[int, int],
        name: str,
    ) -> None:
        self._shards = Untracked(tuple(shards))
        self._first = first
        self.name = name
        self.shape = tf.TensorShape(shape)
        self.dtype = tf.float32

    def __repr__(self) -> str:
        return f"<tfembed.ShardedTable '{self.name}' shape={self.shape}>"

    def read_value(self) -> tf.Tensor:
        """All rows, float32 [vocabulary, width]."""
        parts = [
            shard.read_value()[self._first : self._first + self._rows]
            for shard in self._shards.value
        ]
        width = self.shape[1]
        return tf.reshape(tf.stack(parts, 1), [-1, width])[: self.shape[0]]

    def numpy(self) -> np.ndarray[Any, Any]:
        """The same as an array; eager only."""
        rows: np.ndarray[Any, Any] = self.read_value().numpy()
        return rows

    def assign(self, rows: Any) -> None:
        """Sets all rows.

        Args:
          rows: [vocabulary, width].

        Raises:
          tfembed.errors.ArgumentError: another shape.
        """
        rows = tf.convert_to_tensor(rows, tf.float32)
        if not rows.shape.is_compatible_with(self.shape):
            raise errors.ArgumentError(
                f"{self.name} takes {self.shape}; got {rows.shape}."
            )
        replicas = len(self._shards.value)
        missing = self._rows * replicas - self.shape[0]
        spread = tf.reshape(
            tf.pad(rows, [[0, missing], [0, 0]]),
            [self._rows, replicas, self.shape[1]],
        )
        for replica, shard in enumerate(self._shards.value):
            own = shard[self._first : self._first + self._rows]
            own.assign(spread[:, replica])

    @property
    def _rows(self) -> int:
        return -(-self.shape[0] // len(self._shards.value))

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {private.VARIABLE_VALUE: self.read_value()}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> None:
        rows = restored[private.VARIABLE_VALUE]
        if not rows.shape.is_compatible_with(self.shape):
            raise errors.CheckpointError(
                f"The checkpoint has {rows.shape} for {self.name}, which is "
                f"{self.shape}. Make the table as it was saved."
            )
        self.assign(rows)


def _as_tensor(
    table: ShardedTable,
    dtype: Any = None,
    name: Any = None,
    as_ref: bool = False,
) -> Any:
    del name, as_ref
    if dtype is not None and dtype != tf.float32:
        return NotImplemented
    return table.read_value()


tf.register_tensor_conversion_function(ShardedTable, _as_tensor)
