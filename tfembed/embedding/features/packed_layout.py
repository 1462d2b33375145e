"""How the parts of a packed batch lie in their tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfembed import ops

__all__ = ["Split", "aligned", "split_by_tensorflow", "split_strings"]

# Of values, sizes and the number of parts.
Split = Callable[[tf.Tensor, tf.Tensor, int], list[tf.Tensor]]


def aligned(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """int64 parts behind each other, as `ops.split_aligned` finds them."""
    if not parts:
        return tf.zeros([0], tf.int64)
    pads = _pads(tf.stack([tf.size(one, out_type=tf.int64) for one in parts]))
    nothing = tf.zeros([tf.reduce_sum(pads)], tf.int64)
    padding = tf.split(nothing, pads, num=len(parts))
    pairs = zip(parts, padding, strict=True)
    return tf.concat([one for pair in pairs for one in pair], 0)


def _pads(sizes: tf.Tensor) -> tf.Tensor:
    """What fills up parts of such `sizes`."""
    return tf.math.floormod(-sizes, tf.constant(ops.ALIGNED, tf.int64))


def split_by_tensorflow(
    values: tf.Tensor, sizes: tf.Tensor, num: int
) -> list[tf.Tensor]:
    """As `ops.split_aligned`, for programs that know no op of tfembed."""
    both = tf.reshape(tf.stack([sizes, _pads(sizes)], 1), [-1])
    return tf.split(values, both, num=2 * num)[::2]


def split_strings(
    values: tf.Tensor, sizes: tf.Tensor, num: int
) -> list[tf.Tensor]:
    """Strings, which lie one right behind the other."""
    return tf.split(values, sizes, num=num)
