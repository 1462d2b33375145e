"""Partitions a batch of keys among a table's shards, and merges the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.checks import run_shape
from tfembed.ops.private import converted

__all__ = ["KeyPartition", "Partitioner", "shard_of"]

# (flat int64 keys [n], number of shards) -> shard of each key, integer [n].
Partitioner = Callable[[tf.Tensor, int], Any]


def shard_of(
    keys: tf.Tensor,
    num_shards: int,
    partitioner: Partitioner | None,
    table: str,
) -> tf.Tensor:
    """Returns the shard of each of the flat `keys` [n], int32 [n].

    The default partitioner is `floormod(keys, num_shards)`, for strings
    `tf.strings.to_hash_bucket_fast(keys, num_shards)`.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) the partitioner does not
        return integers.
      tfembed.errors.ArgumentError: (also ValueError) the partitioner's result
        has another shape than the keys.
      tf.errors.InvalidArgumentError: a shard outside of [0, num_shards), or
        another shape that is only known at run time.
    """
    if partitioner is None and keys.dtype == tf.string:
        shards = tf.strings.to_hash_bucket_fast(keys, num_shards)
        return tf.cast(shards, tf.int32)
    if partitioner is None:
        return tf.cast(tf.math.floormod(keys, num_shards), tf.int32)
    text = (
        f"The partitioner of table '{table}' must return one shard in "
        f"[0, {num_shards}) for each key"
    )
    shards = _integers(converted(partitioner)(keys, num_shards), text)
    if not shards.shape.is_compatible_with(keys.shape):
        raise errors.ArgumentError(
            f"{text}, of the keys' shape {keys.shape}; got shape {shards.shape}."
        )
    checks = [
        *_shape_checks(shards, keys, text),
        tf.debugging.assert_non_negative(shards, text),
        tf.debugging.assert_less(
            shards, tf.constant(num_shards, shards.dtype), text
        ),
    ]
    with tf.control_dependencies([c for c in checks if c is not None]):
        shards = tf.cast(tf.identity(shards), tf.int32)
    shards.set_shape(keys.shape)
    return shards


def _integers(shards: Any, text: str) -> tf.Tensor:
    """Converts `shards` to int32, or to int64 if they have another width."""
    try:
        shards = tf.convert_to_tensor(shards)
    except (TypeError, ValueError):
        raise errors.DtypeError(f"{text}; got {shards!r}.") from None
    is_empty = shards.shape.num_elements() == 0  # [] has a float dtype.
    if not shards.dtype.is_integer and not is_empty:
        raise errors.DtypeError(
            f"{text}, an integer; got {shards.dtype.name}. Cast it to int32."
        )
    return shards if shards.dtype == tf.int32 else tf.cast(shards, tf.int64)


def _shape_checks(
    shards: tf.Tensor, keys: tf.Tensor, text: str
) -> list[tf.Operation]:
    """Makes run-time checks of unknown static shapes; keys are [n]."""
    if shards.shape.is_fully_defined() and keys.shape.is_fully_defined():
        return []
    return run_shape(shards, tf.shape(keys), text)


class KeyPartition:
    """The positions of a batch's keys in the parts for each shard.

    For one shard the batch is one part as it is, without any op.

    Args:
      keys: integers or strings of any shape.
      num_shards: the number of shards.
      partitioner: see `shard_of`.
      table: the table's name, for errors.

    Attributes:
      checks: operations that a write of several parts must wait for, so that no
        part of a batch that `split` refuses is written.
    """

    def __init__(
        self,
        keys: tf.Tensor,
        num_shards: int,
        partitioner: Partitioner | None,
        table: str,
    ) -> None:
        self.checks: list[tf.Operation] = []
        self._keys = keys
        self._positions: list[tf.Tensor] | None = None
        if num_shards > 1:
            flat = tf.reshape(keys, [-1])
            shards = shard_of(flat, num_shards, partitioner, table)
            self._positions = tf.dynamic_partition(
                tf.range(tf.size(flat)), shards, num_shards
            )

    def split(self, rows: tf.Tensor) -> list[tf.Tensor]:
        """Splits `rows`, keys.shape + [...], into a part for each shard.

        Raises:
          ValueError, tf.errors.InvalidArgumentError: rows of another shape.
        """
        if self._positions is None:
            return [rows]
        if rows is self._keys:
            flat = tf.reshape(rows, [-1])
            return [tf.gather(flat, positions) for positions in self._positions]
        rank = self._keys.shape.rank
        if rank is None:
            rank = tf.rank(self._keys)
        row_shape = tf.shape(rows)[rank:]
        shape = tf.concat([tf.shape(self._keys), row_shape], 0)
        text = "Expected shape with one row for each key"
        self.checks += run_shape(rows, shape, text)
        with tf.control_dependencies(self.checks):
            flat = tf.reshape(rows, tf.concat([[-1], row_shape], 0))
        return [tf.gather(flat, positions) for positions in self._positions]

    def merge(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Merges the shards' rows into keys.shape + [...]; reverses `split`."""
        if self._positions is None:
            return parts[0]
        flat = tf.dynamic_stitch(self._positions, list(parts))
        row_shape = parts[0].shape[1:]
        rows = tf.reshape(flat, tf.concat([tf.shape(self._keys), row_shape], 0))
        rows.set_shape(self._keys.shape.concatenate(row_shape))
        return rows
