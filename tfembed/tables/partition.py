"""How the keys of a table are dealt to its shards, and brought together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["KeyPartition", "Partitioner", "shard_of"]

# (flat int64 keys [n], number of shards) -> shard of each key, integer [n].
Partitioner = Callable[[tf.Tensor, int], Any]


def shard_of(
    keys: tf.Tensor,
    num_shards: int,
    partitioner: Partitioner | None,
    table: str,
) -> tf.Tensor:
    """The shard of each of the flat `keys` [n], int32 [n].

    Without a partitioner it is `floormod(keys, num_shards)`, of strings
    `tf.strings.to_hash_bucket_fast(keys, num_shards)`.

    Raises:
      tf.errors.InvalidArgumentError: the partitioner's result has another shape
        than the keys or names a shard that is not there.
    """
    if partitioner is None and keys.dtype == tf.string:
        shards = tf.strings.to_hash_bucket_fast(keys, num_shards)
        return tf.cast(shards, tf.int32)
    if partitioner is None:
        return tf.cast(tf.math.floormod(keys, num_shards), tf.int32)
    shards = tf.cast(partitioner(keys, num_shards), tf.int32)
    text = (
        f"The partitioner of table '{table}' must return one shard in "
        f"[0, {num_shards}) for each key"
    )
    checks = [
        tf.debugging.assert_equal(tf.shape(shards), tf.shape(keys), text),
        tf.debugging.assert_non_negative(shards, text),
        tf.debugging.assert_less(shards, num_shards, text),
    ]
    with tf.control_dependencies([c for c in checks if c is not None]):
        return tf.identity(shards)


class KeyPartition:
    """The places of a batch's keys, dealt to the shards.

    One shard takes a batch as it is, without any op.

    Args:
      keys: int64 of any shape.
      num_shards: how many there are.
      partitioner: see `shard_of`.
      table: the table's name, for errors.
    """

    def __init__(
        self,
        keys: tf.Tensor,
        num_shards: int,
        partitioner: Partitioner | None,
        table: str,
    ) -> None:
        self._keys = keys
        self._places: list[tf.Tensor] | None = None
        if num_shards > 1:
            flat = tf.reshape(keys, [-1])
            shards = shard_of(flat, num_shards, partitioner, table)
            self._places = tf.dynamic_partition(
                tf.range(tf.size(flat)), shards, num_shards
            )

    def split(self, rows: tf.Tensor) -> list[tf.Tensor]:
        """The part of `rows`, keys.shape + [...], that belongs to each shard.

        Raises:
          ValueError, tf.errors.InvalidArgumentError: rows of another shape.
        """
        if self._places is None:
            return [rows]
        if rows is self._keys:
            flat = tf.reshape(rows, [-1])
            return [tf.gather(flat, places) for places in self._places]
        rank = self._keys.shape.rank
        if rank is None:
            rank = tf.rank(self._keys)
        row_shape = tf.shape(rows)[rank:]
        shape = tf.concat([tf.shape(self._keys), row_shape], 0)
        text = "Expected shape with one row for each key"
        checks = [tf.debugging.assert_equal(tf.shape(rows), shape, text)]
        with tf.control_dependencies([c for c in checks if c is not None]):
            flat = tf.reshape(rows, tf.concat([[-1], row_shape], 0))
        return [tf.gather(flat, places) for places in self._places]

    def merge(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Brings the shards' rows together again, keys.shape + [...]."""
        if self._places is None:
            return parts[0]
        flat = tf.dynamic_stitch(self._places, list(parts))
        row_shape = parts[0].shape[1:]
        rows = tf.reshape(flat, tf.concat([tf.shape(self._keys), row_shape], 0))
        rows.set_shape(self._keys.shape.concatenate(row_shape))
        return rows
