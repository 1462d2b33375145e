"""Gradients of tables, summed by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

__all__ = [
    "TableGradient",
    "check_finite_sums",
    "count_not_finite",
    "finite_rows",
    "finite_sums",
    "insert_drawn",
    "insert_missing",
    "sum_by_key",
]

# The gradient of a table by key, and its `Variable`.
TableGradient: TypeAlias = tuple[tf.IndexedSlices, Any]


def sum_by_key(gradients: Sequence[TableGradient]) -> list[TableGradient]:
    """One entry for each variable, with distinct keys and their sums.

    Args:
      gradients: by key; keys may repeat and a variable may come several times.

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
        (_sum(parts[place], params), params)
        for place, params in variables.items()
    ]


def finite_rows(values: tf.Tensor) -> tf.Tensor:
    """Which rows [n, dim] have no NaN and no infinity, bool [n]."""
    return tf.reduce_all(tf.math.is_finite(values), axis=-1)


def finite_sums(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Those of a variable's sums that are finite."""
    keep = tf.where(finite_rows(slices.values))[:, 0]
    return tf.IndexedSlices(
        tf.gather(slices.values, keep), tf.gather(slices.indices, keep)
    )


def count_not_finite(slices: tf.IndexedSlices) -> tf.Tensor:
    """How many of a variable's sums are not finite, int64 []."""
    is_bad = tf.logical_not(finite_rows(slices.values))
    return tf.math.count_nonzero(is_bad, dtype=tf.int64)


def check_finite_sums(
    slices: tf.IndexedSlices, params: Any
) -> tf.Operation | None:
    """Fails, as `nonfinite="refuse"` asks, where a sum is not finite."""
    return tf.debugging.assert_equal(
        count_not_finite(slices),
        tf.constant(0, tf.int64),
        f"The summed gradient of a key of '{params.name}' is not finite, and "
        "nonfinite='refuse'",
    )


def insert_drawn(
    gradients: Sequence[TableGradient], nonfinite: str
) -> list[tf.Operation]:
    """Inserts the keys of a step whose initial rows a Python function draws.

    Args:
      gradients: as for `sum_by_key`, of such tables alone.
      nonfinite: "skip", "refuse" or "allow".

    Returns:
      What must run before the update.
    """
    sums = sum_by_key(gradients)
    checks = []
    if nonfinite == "refuse":
        checks = [check_finite_sums(*pair) for pair in sums]
    with tf.control_dependencies([c for c in checks if c is not None]):
        if nonfinite == "skip":
            sums = [(finite_sums(slices), params) for slices, params in sums]
        return insert_missing(sums)


def insert_missing(sums: Sequence[TableGradient]) -> list[tf.Operation]:
    """`HashTable.insert_missing` of the keys of each variable's sums.

    Returns:
      What must run before rows are read or updated.
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
    distinct, places = tf.unique(keys)
    sums = tf.math.unsorted_segment_sum(values, places, tf.size(distinct))
    return tf.IndexedSlices(tf.ensure_shape(sums, [None, params.dim]), distinct)
