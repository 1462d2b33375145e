"""A saved table whose rows a partitioner deals to shards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed.ops import checkpoint as checkpoint_ops
from tfembed.ops import table as table_ops
from tfembed.tables import HashTable

__all__ = ["TableSource"]


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
        self._for_each_chunk(lambda keys, rows: self.table.partition(keys))

    def deal_rows(self) -> None:
        """Adds all rows to the table, which is empty."""
        self._for_each_chunk(self._import)

    def _import(self, keys: tf.Tensor, rows: tf.Tensor) -> None:
        parts = self.table.partition(keys)
        for handle, part_keys, part_rows in zip(
            self.table.handles,
            parts.split(keys),
            parts.split(rows),
            strict=True,
        ):
            table_ops.import_rows(handle, part_keys, part_rows)

    def _for_each_chunk(
        self, visit: Callable[[tf.Tensor, tf.Tensor], Any]
    ) -> None:
        # Chunk 0 is there in an empty table too.
        def body(chunk: tf.Tensor, num_chunks: tf.Tensor) -> list[tf.Tensor]:
            keys, rows, num_chunks = checkpoint_ops.read_chunk(
                self.table.handle,
                self.prefix,
                chunk,
                tensor_name=self.tensor_name,
                load_slots=self.load_slots,
                has_string_keys=self.table.key_dtype == tf.string,
            )
            if keys.dtype != self.table.key_dtype:  # int32 is stored wider.
                keys = tf.cast(keys, self.table.key_dtype)
            visit(keys, rows)
            return [chunk + 1, num_chunks]

        first = tf.constant(0, tf.int64)
        tf.while_loop(
            lambda chunk, num_chunks: chunk < num_chunks,
            body,
            [first, first + 1],
            parallel_iterations=1,
        )
