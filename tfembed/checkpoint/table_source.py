"""A saved table, of which a program deals rows or waiting keys to shards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.ops import checkpoint as checkpoint_ops
from tfembed.ops import table as table_ops
from tfembed.tables import HashTable
from tfembed.tables.sharded_table import NumberShard

__all__ = ["Room", "TableSource"]

_Read = Callable[[tf.Tensor], tuple[tf.Tensor, ...]]
_Write = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Any]


class Room:
    """The memory for what a restore reads ahead, of all its tables together.

    Args:
      num_bytes: at most.
    """

    def __init__(self, num_bytes: int = 64 << 20) -> None:
        self._free = num_bytes

    def take(self, tensors: Sequence[tf.Tensor]) -> bool:
        """Whether there is room for tensors more, which then is theirs."""
        self._free -= sum(_bytes_of(tensor) for tensor in tensors)
        return self._free >= 0


def _bytes_of(tensor: tf.Tensor) -> int:
    size = int(tf.size(tensor))
    if tensor.dtype != tf.string:
        return size * int(tensor.dtype.size)
    # TensorFlow has 24 bytes of each string beside its content.
    return size * 24 + int(tf.reduce_sum(tf.strings.length(tensor)))


class _Chunks:
    """A saved table's keys and what belongs to them, chunk by chunk.

    Args:
      read: chunk number -> keys, what belongs to them, number of chunks.
      room: for chunks that are read ahead.
    """

    def __init__(self, read: _Read, room: Room) -> None:
        self._read = read
        self._room = room
        self._kept: list[tuple[tf.Tensor, ...]] | None = None

    def read_ahead(self, visit: Callable[..., Any]) -> None:
        """Visits all chunks; the next `for_each` need not read them again.

        It does where there was no room, and in functions and graphs.
        """
        kept: list[tuple[tf.Tensor, ...]] = []
        has_room = tf.executing_eagerly()

        def visit_and_keep(*chunk: tf.Tensor) -> None:
            nonlocal has_room
            visit(*chunk)
            has_room = has_room and self._room.take(chunk)
            if has_room:
                kept.append(chunk)
            else:
                kept.clear()

        self.for_each(visit_and_keep)
        self._kept = kept if has_room else None

    def for_each(self, visit: Callable[..., Any]) -> None:
        """Calls visit(keys, what belongs to them) for each chunk."""
        if self._kept is not None:
            for chunk in self._kept:
                visit(*chunk)
            return

        # Chunk 0 is there in an empty table too.
        def body(chunk: tf.Tensor, num_chunks: tf.Tensor) -> list[tf.Tensor]:
            *content, num_chunks = self._read(chunk)
            visit(*content)
            return [chunk + 1, num_chunks]

        first = tf.constant(0, tf.int64)
        tf.while_loop(
            lambda chunk, num_chunks: chunk < num_chunks,
            body,
            [first, first + 1],
            parallel_iterations=1,
        )


class TableSource:
    """The rows of a checkpointed table that a program, not an op, restores.

    A program restores rows that a partitioner or a hash of strings deals out,
    and keys that wait for admission.

    Args:
      table: where all that goes.
      prefix: the checkpoint's, a string scalar.
      tensor_name: the table's in the checkpoint.
      load_slots: whether saved slots are loaded.
      room: for what is read ahead.
    """

    def __init__(
        self,
        *,
        table: HashTable,
        prefix: tf.Tensor,
        tensor_name: str,
        load_slots: bool,
        room: Room,
    ) -> None:
        self.table = table
        self.tensor_name = tensor_name
        self.load_slots = load_slots
        self._prefix = prefix
        self._like = table.handle  # Has the layout of the rows to restore.
        self._rows: _Chunks | None = None
        if not table.deals_by_remainder:
            self._rows = _Chunks(self._read_rows, room)
        # A served table trains nothing, so nothing waits there.
        self._waiting: _Chunks | None = None
        if table.admission is not None and load_slots:
            self._waiting = _Chunks(self._read_waiting, room)

    def read_ahead(self) -> None:
        """Reads all that `deal` will write, and deals it to see that it can be.

        Raises:
          tf.errors.OpError: files that cannot be read, or do not fit the table.
          tf.errors.InvalidArgumentError: a shard that is not there.
        """
        if self._rows is not None:
            self._lay_out_slots()
            self._rows.read_ahead(self._partition)
        if self._waiting is not None:
            self._waiting.read_ahead(self._partition)

    def deal(self) -> None:
        """Adds all to the table, which is empty; in eager mode all or none.

        Raises:
          tf.errors.ResourceExhaustedError: no memory.
        """
        try:
            if self._rows is not None:
                self._rows.for_each(self._to_shards(table_ops.import_rows))
            if self._waiting is not None:
                self._waiting.for_each(
                    self._to_shards(table_ops.import_waiting)
                )
        except tf.errors.OpError:
            self.table.clear()
            raise

    def _lay_out_slots(self) -> None:
        """Takes over the checkpoint's slots, not in the table yet."""
        is_known = self.table.slot_names or not self.load_slots
        if is_known or not tf.executing_eagerly():
            return
        shard = self.table.shards[0]
        options = dataclasses.replace(shard.options, init_size=0)
        self._shard = NumberShard(options, shard.device)  # Holds the handle.
        self._like = self._shard.resource_handle
        checkpoint_ops.restore(
            [self._like],
            self._prefix,
            tensor_names=[self.tensor_name],
            shard_counts=[1],
            keep_seeds=[True],
            deal_rows=[False],
            load_slots=[True],
        )

    def _partition(self, keys: tf.Tensor, beside: tf.Tensor) -> None:
        del beside
        self.table.partition(keys)

    def _read_rows(self, chunk: tf.Tensor) -> tuple[tf.Tensor, ...]:
        keys, *others = checkpoint_ops.read_chunk(
            self._like,
            self._prefix,
            chunk,
            tensor_name=self.tensor_name,
            load_slots=self.load_slots,
            has_string_keys=self.table.key_dtype == tf.string,
        )
        return self._cast(keys), *others

    def _read_waiting(self, chunk: tf.Tensor) -> tuple[tf.Tensor, ...]:
        keys, *others = checkpoint_ops.read_waiting(
            self._like,
            self._prefix,
            chunk,
            tensor_name=self.tensor_name,
            has_string_keys=self.table.key_dtype == tf.string,
        )
        return self._cast(keys), *others

    def _cast(self, keys: tf.Tensor) -> tf.Tensor:
        if keys.dtype == self.table.key_dtype:
            return keys
        return tf.cast(keys, self.table.key_dtype)  # int32 is stored wider.

    def _to_shards(self, write: _Write) -> Callable[..., None]:
        """Returns what deals keys and their columns to the shards."""

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
