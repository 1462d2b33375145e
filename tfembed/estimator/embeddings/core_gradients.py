"""Gradients that a TPU applies core by core: `use_gradient_accumulation=False`."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfembed import ops

__all__ = ["share_of_core"]


def share_of_core(
    ids: ops.FeatureIds,
    plan: ops.FeaturePlan,
    core: int,
    num_cores: int,
    *,
    has_vocabulary: bool,
) -> tuple[ops.FeatureIds, ops.FeaturePlan]:
    """The ids of a feature whose rows are at home on one core.

    What is left of a sample is summed by the weights with which its combiner
    had combined all of it, so that each row gets the gradient that it had.

    Args:
      ids: the feature.
      plan: how it was looked up.
      core: the core. A row is at home on core id % num_cores, a string by its
        hash.
      num_cores: how many there are.
      has_vocabulary: whether ids below 0 were passed over.

    Returns:
      Sparse ids with weights, and the plan that sums them.
    """
    indices = _indices(ids)
    weights, used = _weights(ids, plan, indices, has_vocabulary)
    if ids.ids.dtype == tf.string:
        home = tf.strings.to_hash_bucket_fast(ids.ids, num_cores)
    else:
        home = tf.math.floormod(ids.ids, tf.constant(num_cores, tf.int64))
    stays = tf.equal(home, core) & used
    kept = tf.boolean_mask(weights, stays)
    if plan.max_sequence_length:
        kept = tf.zeros([0], tf.float32)  # A sequence's ids have no weights.
    columns = tf.reduce_max(tf.concat([indices[:, 1], [0]], 0)) + 1
    share = ops.FeatureIds(
        kind="sparse",
        ids=tf.boolean_mask(ids.ids, stays),
        rows=tf.boolean_mask(indices, stays),
        weights=kept,
        batch_size=ids.batch_size,
        dense_shape=(ids.batch_size, columns),
    )
    # A sum takes weights of any sign as they are.
    return share, dataclasses.replace(plan, combiner="sum")


def _indices(ids: ops.FeatureIds) -> tf.Tensor:
    """The sample and the place of each id, int64 [n, 2]."""
    if ids.kind == "sparse":
        return ids.rows
    if ids.kind == "dense":
        rows = tf.range(ids.batch_size)
        return tf.stack([rows, tf.zeros_like(rows)], 1)
    ragged = tf.RaggedTensor.from_row_splits(ids.ids, ids.rows, validate=False)
    rows = tf.cast(ragged.value_rowids(), tf.int64)
    places = tf.range(tf.size(ids.ids, tf.int64)) - tf.gather(ids.rows, rows)
    return tf.stack([rows, places], 1)


def _weights(
    ids: ops.FeatureIds,
    plan: ops.FeaturePlan,
    indices: tf.Tensor,
    has_vocabulary: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each row's factor, float32 [n], and whether the row was used."""
    weights = ids.weights
    if weights.shape[0] == 0:  # Features without weights have none at all.
        weights = tf.ones(tf.shape(ids.ids), tf.float32)
    used = tf.ones(tf.shape(ids.ids), tf.bool)
    if ids.kind == "sparse" and plan.validate:
        if has_vocabulary:
            used &= ids.ids >= 0
        if plan.combiner != "sum":
            used &= weights > 0
        weights = tf.where(used, weights, tf.zeros_like(weights))
    if plan.combiner == "sum":
        return weights, used
    squares = weights if plan.combiner == "mean" else weights * weights
    total = tf.math.unsorted_segment_sum(squares, indices[:, 0], ids.batch_size)
    if plan.combiner == "sqrtn":
        total = tf.sqrt(total)
    divisors = tf.gather(total, indices[:, 0])
    return tf.math.divide_no_nan(weights, divisors), used
