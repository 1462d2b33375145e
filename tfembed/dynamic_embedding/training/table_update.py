"""One update of all tables of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import ops
from tfembed.dynamic_embedding.variables.variable import Variable

__all__ = ["update_tables"]


def update_tables(
    gradients: Sequence[tuple[tf.IndexedSlices, Variable]],
    *,
    rule: str,
    learning_rate: tf.Tensor,
    nonfinite: str,
) -> tf.Tensor:
    """Applies `rule` once to each distinct key of each variable.

    Gradients of one key, in one entry or several, are summed first. All is one
    op call, so that a refused gradient leaves every table as it was.

    Args:
      gradients: by key; a variable may come several times.
      rule: the text of the update rule, whose slots the tables have.
      learning_rate: scalar.
      nonfinite: "skip", "refuse" or "allow".

    Returns:
      int64 []: the keys whose sum was not finite.
    """
    handles: list[Any] = []
    dims: list[int] = []
    first_shards: dict[int, int] = {}
    features, plans, summands = [], [], []
    for slices, params in gradients:
        if id(params) not in first_shards:
            first_shards[id(params)] = len(handles)
            handles += params.table.handles
            dims += [params.dim] * params.shard_num
        for shard, (keys, values) in enumerate(_by_shard(slices, params)):
            features.append(ops.feature_ids(keys, name=params.name))
            place = first_shards[id(params)] + shard
            plans.append(
                ops.FeaturePlan(table=place, combiner="sum", name=params.name)
            )
            summands.append(values)
    counts = ops.grouped_update(
        handles,
        [],
        dims,
        features,
        plans,
        summands,
        rules=[rule] * len(handles),
        learning_rates=[learning_rate] * len(handles),
        nonfinite=nonfinite,
    )
    return tf.reduce_sum(counts)


def _by_shard(
    slices: tf.IndexedSlices, params: Variable
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Keys [n] and gradients [n, dim] of each shard."""
    keys = tf.reshape(slices.indices, [-1])
    values = tf.reshape(tf.cast(slices.values, tf.float32), [-1, params.dim])
    # A partitioner sees the keys as lookups give them to it.
    parts = params.table.partition(tf.cast(keys, params.key_dtype))
    if keys.dtype == tf.int32:
        keys = tf.cast(keys, tf.int64)
    return list(zip(parts.split(keys), parts.split(values), strict=True))
