"""Gradients of tables, summed by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

__all__ = [
    "TableGradient",
    "finite_rows",
    "insert_drawn",
    "insert_missing",
    "sum_by_key",
    "usable_sums",
]

# The gradient of a table by key, and its `Variable`.
TableGradient: TypeAlias = tuple[tf.IndexedSlices, Any]


def sum_by_key(gradients: Sequence[TableGradient]) -> list[TableGradient]:
    """One entry for each variable, with distinct keys and their sums.

    Args:
      gradients: the gradients by key; keys may repeat and a variable may come
        several times.

    Returns:
      Per variable, in the order in which they first come, indices [n] and
      values float32 [n, dim].
    """
    parts: dict[int, list[tf.IndexedSlices]] = {}
    variables: dict[int, Any] = {}
    for slices, params in gradients:
        variables[id(params)] = params
        parts.setdefault(id(params), []).append(slices)
    return [
        (_sum(parts[params_id], params), params)
        for params_id, params in variables.items()
    ]


def finite_rows(values: tf.Tensor) -> tf.Tensor:
    """Which rows [n, dim] have no NaN and no infinity, bool [n]."""
    return tf.reduce_all(tf.math.is_finite(values), axis=-1)


def usable_sums(
    slices: tf.IndexedSlices, nonfinite: str, table: str
) -> tuple[tf.IndexedSlices, tf.Tensor]:
    """Leaves out sums that are not finite, or refuses them.

    Args:
      slices: a table's sums, by distinct key.
      nonfinite: "skip", "refuse" or "allow", which lets all pass.
      table: the table's name in errors.

    Returns:
      The sums to use; and int64 [], how many sums have a NaN or an infinity.

    Raises:
      tf.errors.InvalidArgumentError: there are such and nonfinite="refuse"; when
        it runs.
    """
    keys, values = slices.indices, slices.values
    is_finite = finite_rows(values)
    count = tf.math.count_nonzero(tf.logical_not(is_finite), dtype=tf.int64)
    if nonfinite == "skip":
        keep = tf.where(is_finite)[:, 0]
        keys, values = tf.gather(keys, keep), tf.gather(values, keep)
    elif nonfinite == "refuse":
        check = tf.debugging.assert_equal(
            count,
            tf.constant(0, tf.int64),
            f"The summed gradient of a key of table '{table}' is not finite, and "
            "nonfinite='refuse'; nothing was changed",
        )
        with tf.control_dependencies([] if check is None else [check]):
            keys, values = tf.identity(keys), tf.identity(values)
    return tf.IndexedSlices(values, keys), count


def insert_drawn(
    gradients: Sequence[TableGradient], nonfinite: str
) -> list[tf.Operation]:
    """Inserts the keys of a step whose initial rows a Python function draws.

    Args:
      gradients: as for `sum_by_key`, of such tables alone.
      nonfinite: "skip", "refuse" or "allow".

    Returns:
      The operations that must run before the update.
    """
    sums = [
        (usable_sums(slices, nonfinite, params.name)[0], params)
        for slices, params in sum_by_key(gradients)
    ]
    # Where one is refused, nothing is inserted.
    with tf.control_dependencies([slices.values for slices, _ in sums]):
        return insert_missing(sums)


def insert_missing(sums: Sequence[TableGradient]) -> list[tf.Operation]:
    """`HashTable.insert_missing` of the keys of each variable's sums.

    Returns:
      The operations that must run before rows are read or updated.
    """
    inserted = [
        params.table.insert_missing(slices.indices) for slices, params in sums
    ]
    return [operation for operation in inserted if operation is not None]


def _sum(parts: list[tf.IndexedSlices], params: Any) -> tf.IndexedSlices:
    keys = tf.concat([tf.reshape(part.indices, [-1]) for part in parts], 0)
    if keys.dtype != params.key_dtype:
        keys = tf.cast(keys, params.key_dtype)
    rows = [tf.reshape(part.values, [-1, params.dim]) for part in parts]
    values = tf.concat([tf.cast(part, tf.float32) for part in rows], 0)
    distinct, positions = tf.unique(keys)
    sums = tf.math.unsorted_segment_sum(values, positions, tf.size(distinct))
    return tf.IndexedSlices(tf.ensure_shape(sums, [None, params.dim]), distinct)
