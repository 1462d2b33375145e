"""Which shard a key lives in."""

from __future__ import annotations

import tensorflow as tf

__all__ = ["default_partition_fn", "make_partition"]


def default_partition_fn(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
    """Deals keys out by remainder: shard = floormod(key, shard_num).

    Strings are dealt out by `tf.strings.to_hash_bucket_fast`.

    Args:
      keys: integers or strings of any shape.
      shard_num: the number of shards.

    Returns:
      int32 shards in [0, shard_num), of the keys' shape.
    """
    keys = tf.convert_to_tensor(keys)
    if shard_num <= 1:
        return tf.zeros(tf.shape(keys), tf.int32)
    if keys.dtype == tf.string:
        buckets = tf.strings.to_hash_bucket_fast(keys, shard_num)
        return tf.cast(buckets, tf.int32)
    shards = tf.math.floormod(keys, tf.constant(shard_num, keys.dtype))
    return tf.cast(shards, tf.int32)


def make_partition(
    data: tf.Tensor, partition_index: tf.Tensor, shard_num: int
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Splits `data` by shard.

    Args:
      data: [n, ...].
      partition_index: int32 [n], the shard of each entry.
      shard_num: the number of shards.

    Returns:
      The parts, one a shard, and for each part the places of its entries in
      `data`, as `tf.dynamic_stitch` wants them.

    Raises:
      tf.errors.InvalidArgumentError: a shard outside [0, shard_num).
    """
    data = tf.convert_to_tensor(data)
    if shard_num <= 1:
        return [data], [tf.range(tf.shape(data)[0])]
    places = tf.range(tf.shape(data)[0])
    parts = tf.dynamic_partition(data, partition_index, shard_num)
    indices = tf.dynamic_partition(places, partition_index, shard_num)
    return parts, indices
