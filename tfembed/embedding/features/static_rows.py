"""Rows of a variable or tensor [vocabulary_size, dim], by stock TensorFlow ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["gathered_once", "static_rows"]


def static_rows(
    table: Any,
    wanted: Sequence[tuple[str, tf.Tensor]],
    *,
    sums_gradients: bool = False,
) -> list[tf.Tensor]:
    """The rows [..., dim] of ids [...]; an id that the table lacks is an error.

    Args:
      table: the variable or tensor.
      wanted: paths, which errors name, and ids of any integer dtype.
      sums_gradients: whether the gradient with respect to a variable has each id
        once; else it has an entry for each that was looked up.

    Raises:
      tf.errors.InvalidArgumentError: when it runs: an id that is not there.
    """
    ids = [(path, _gatherable(of_one, wanted)) for path, of_one in wanted]
    if not tf.executing_eagerly():
        ids = [(path, _in_vocabulary(one, table, path)) for path, one in ids]
        return _gathered(table, [one for _, one in ids], sums_gradients)
    # On the host the gather itself finds it, and eager ops are dear.
    try:
        rows = _gathered(table, [one for _, one in ids], sums_gradients)
    except tf.errors.InvalidArgumentError:
        _check(table, ids)
        raise
    if tf.DeviceSpec.from_string(rows[0].device).device_type != "CPU":
        _check(table, ids)
    return rows


def gathered_once(
    table: Any, distinct: tf.Tensor, places: tf.Tensor
) -> tf.Tensor:
    """Rows of `distinct` ids [m], each at its places: [n] numbers below m.

    The gradient with respect to a variable has m entries.
    """

    @tf.custom_gradient
    def spread(rows: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # That of a gather would come as slices, made dense with a warning.
            return tf.math.unsorted_segment_sum(
                upstream, places, tf.shape(rows)[0]
            )

        return tf.gather(rows, places), gradient

    return spread(tf.gather(table, distinct))


def _gathered(
    table: Any, ids: Sequence[tf.Tensor], sums_gradients: bool
) -> list[tf.Tensor]:
    if not sums_gradients:
        return [tf.gather(table, one) for one in ids]
    flat = [tf.reshape(one, [-1]) for one in ids]
    rows = gathered_once(table, *tf.unique(tf.concat(flat, 0)))
    parts = [rows]
    if len(ids) > 1:
        parts = tf.split(rows, tf.stack([tf.size(one) for one in flat]))
    return [
        tf.reshape(part, tf.concat([tf.shape(one), tf.shape(rows)[1:]], 0))
        if one.shape.rank != 1
        else tf.ensure_shape(part, one.shape.concatenate(rows.shape[1:]))
        for part, one in zip(parts, ids, strict=True)
    ]


def _gatherable(
    ids: tf.Tensor, wanted: Sequence[tuple[str, tf.Tensor]]
) -> tf.Tensor:
    """`ids` in a dtype that gathers take, the same for all that are wanted."""
    dtypes = {of_one.dtype for _, of_one in wanted}
    if len(dtypes) == 1 and ids.dtype in (tf.int32, tf.int64):
        return ids
    return tf.cast(ids, tf.int64)


def _check(table: Any, ids: Sequence[tuple[str, tf.Tensor]]) -> None:
    for path, one in ids:
        _in_vocabulary(one, table, path)


def _in_vocabulary(ids: tf.Tensor, table: Any, path: str) -> tf.Tensor:
    """`ids`, once it is known that `table` has them all.

    A GPU gathers zeros for others in silence. Of no ids, the lowest is the
    greatest number of their dtype and the highest the least, which passes.
    """
    size = tf.cast(tf.shape(table)[0], tf.int64)
    lowest, highest = tf.reduce_min(ids), tf.reduce_max(ids)
    is_in = (tf.cast(lowest, tf.int64) >= 0) & (
        tf.cast(highest, tf.int64) < size
    )
    text = f"An id of {path} is outside of its table. Lowest, highest, rows:"
    check = tf.debugging.Assert(is_in, [text, lowest, highest, size])
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(ids)
