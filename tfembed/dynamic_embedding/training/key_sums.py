"""Gradients of tables, summed by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from tfembed.dynamic_embedding.variables.variable import Variable

__all__ = ["TableGradient", "finite_rows", "sum_by_key"]

TableGradient: TypeAlias = tuple[tf.IndexedSlices, Variable]


def sum_by_key(gradients: Sequence[TableGradient]) -> list[TableGradient]:
    """One entry for each variable, with distinct keys and their sums.

    Args:
      gradients: by key; keys may repeat and a variable may come several times.

    Returns:
      Per variable, in the order in which they first come, indices [n] and
      values float32 [n, dim].
    """
    parts: dict[int, list[tf.IndexedSlices]] = {}
    variables: dict[int, Variable] = {}
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


def _sum(parts: list[tf.IndexedSlices], params: Variable) -> tf.IndexedSlices:
    keys = tf.concat([tf.reshape(part.indices, [-1]) for part in parts], 0)
    if keys.dtype != params.key_dtype:
        keys = tf.cast(keys, params.key_dtype)
    rows = [tf.reshape(part.values, [-1, params.dim]) for part in parts]
    values = tf.concat([tf.cast(part, tf.float32) for part in rows], 0)
    distinct, places = tf.unique(keys)
    sums = tf.math.unsorted_segment_sum(values, places, tf.size(distinct))
    return tf.IndexedSlices(tf.ensure_shape(sums, [None, params.dim]), distinct)
