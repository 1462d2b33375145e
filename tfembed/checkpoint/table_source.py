"""A saved table, of which a program deals rows or waiting keys to shards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed.ops import checkpoint as checkpoint_ops
from tfembed.ops import table as table_ops
from tfembed.tables import HashTable

__all__ = ["TableSource"]

_Write = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Any]


@dataclasses.dataclass(frozen=True, eq=False)
class TableSource:
    """Reads a table of a checkpoint chunk by chunk.

    Attributes:
      table: where its rows go.
      prefix: the checkpoint's, a string scalar.
      tensor_name: the table's in the checkpoint.
      load_slots: whether saved slots are loaded.
    """

    table: HashTable
    prefix: tf.Tensor
    tensor_name: str
    load_slots: bool

    def check_partitioner(self) -> None:
        """Deals all keys to shards and drops them, so that errors come early.

        Raises:
          tf.errors.InvalidArgumentError: a shard that is not there.
        """
        self._for_each_chunk(
            self._read_rows, lambda keys, rows: self.table.partition(keys)
        )

    def deal_rows(self) -> None:
        """Adds all rows to the table, which is empty; in eager mode all or none.

        Raises:
          tf.errors.ResourceExhaustedError: no memory.
        """
        try:
            self._for_each_chunk(
                self._read_rows, self._to_shards(table_ops.import_rows)
            )
        except tf.errors.OpError:
            self.table.clear()
            raise

    def deal_waiting(self) -> None:
        """Has the keys that waited for admission wait in the table."""
        self._for_each_chunk(
            self._read_waiting, self._to_shards(table_ops.import_waiting)
        )

    def _read_rows(self, chunk: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return checkpoint_ops.read_chunk(
            self.table.handle,
            self.prefix,
            chunk,
            tensor_name=self.tensor_name,
            load_slots=self.load_slots,
            has_string_keys=self.table.key_dtype == tf.string,
        )

    def _read_waiting(self, chunk: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return checkpoint_ops.read_waiting(
            self.table.handle,
            self.prefix,
            chunk,
            tensor_name=self.tensor_name,
            has_string_keys=self.table.key_dtype == tf.string,
        )

    def _to_shards(self, write: _Write) -> Callable[..., None]:
        """What deals keys and what belongs to them to the shards."""

        def deal(keys: tf.Tensor, beside: tf.Tensor) -> None:
            parts = self.table.partition(keys)
            for handle, part_keys, part_beside in zip(
                self.table.handles,
                parts.split(keys),
                parts.split(beside),
                strict=True,
            ):
                write(handle, part_keys, part_beside)

        return deal

    def _for_each_chunk(
        self,
        read: Callable[[tf.Tensor], tuple[tf.Tensor, ...]],
        visit: Callable[[tf.Tensor, tf.Tensor], Any],
    ) -> None:
        # Chunk 0 is there in an empty table too.
        def body(chunk: tf.Tensor, num_chunks: tf.Tensor) -> list[tf.Tensor]:
            keys, beside, num_chunks = read(chunk)
            if keys.dtype != self.table.key_dtype:  # int32 is stored wider.
                keys = tf.cast(keys, self.table.key_dtype)
            visit(keys, beside)
            return [chunk + 1, num_chunks]

        first = tf.constant(0, tf.int64)
        tf.while_loop(
            lambda chunk, num_chunks: chunk < num_chunks,
            body,
            [first, first + 1],
            parallel_iterations=1,
        )
