"""Slices by key as one dense tensor, and back.

tf.custom_gradient makes a tensor of each gradient, and slices by key have no
shape to be dense in.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["packed_slices", "unpacked_slices"]

_PART_BITS = 16  # Of a key, in one float32: exact, and never a NaN.
_MARK = 29533.0  # Another number says that a gradient was changed.


def packed_slices(slices: tf.IndexedSlices) -> tf.Tensor:
    """Slices as one float32 tensor [n, ...]: a mark, the rows, the keys."""
    keys = tf.reshape(slices.indices, [-1])
    if keys.dtype == tf.string:
        parts = _letters(keys)
    else:
        whole = tf.bitcast(tf.cast(keys, tf.int64), tf.uint16)
        parts = tf.cast(whole, tf.float32)
    mark = tf.fill([tf.size(keys), 1], _MARK)
    rows = tf.cast(slices.values, tf.float32)
    return tf.concat([mark, rows, parts], 1)


def unpacked_slices(
    packed: Any, key_dtype: tf.DType, dim: int
) -> tf.IndexedSlices:
    """The slices that `packed_slices` had; what are slices, as they are.

    Raises:
      tf.errors.InvalidArgumentError: when it runs, the tensor was changed.
    """
    if isinstance(packed, tf.IndexedSlices):
        return packed
    number = tf.shape(packed)[0]
    checks = [
        tf.debugging.assert_equal(
            packed[:, :1],
            _MARK,
            "A table's gradient was changed as a tensor, inside of "
            "tf.custom_gradient. Change its `values`, and return "
            "tf.IndexedSlices(values, indices).",
        )
    ]
    with tf.control_dependencies([one for one in checks if one is not None]):
        rows = tf.reshape(packed[:, 1 : dim + 1], [number, dim])
        parts = packed[:, dim + 1 :]
    if key_dtype == tf.string:
        return tf.IndexedSlices(rows, _words(parts))
    parts = tf.reshape(parts, [number, 64 // _PART_BITS])
    keys = tf.bitcast(tf.cast(parts, tf.uint16), tf.int64)
    return tf.IndexedSlices(rows, keys)


def _letters(keys: tf.Tensor) -> tf.Tensor:
    """Strings [n] as float32 [n, 1 + the longest's length]: lengths, bytes."""
    lengths = tf.strings.length(keys)
    longest = tf.reduce_max(tf.concat([lengths, [1]], 0))
    letters = tf.io.decode_raw(keys, tf.uint8, fixed_length=longest)
    parts = tf.concat([lengths[:, None], tf.cast(letters, tf.int32)], 1)
    return tf.cast(parts, tf.float32)


def _words(parts: tf.Tensor) -> tf.Tensor:
    """The strings that `_letters` took apart."""
    parts = tf.cast(parts, tf.int32)
    alphabet = tf.constant([bytes([i]) for i in range(256)])
    words = tf.strings.reduce_join(tf.gather(alphabet, parts[:, 1:]), 1)
    lengths = tf.reduce_sum(parts[:, :1], 1)
    return tf.strings.substr(words, tf.zeros_like(lengths), lengths)
