"""Parts of a feature's ids, by where the rows of the ids are at home."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfembed import ops

__all__ = ["dealt", "id_checks", "indices_of", "share_of_core", "used_ids"]

Share = tuple[ops.FeatureIds, ops.FeaturePlan]


def dealt(
    ids: ops.FeatureIds,
    plan: ops.FeaturePlan,
    homes: tf.Tensor,
    num_homes: int,
    *,
    has_vocabulary: bool,
) -> list[Share]:
    """Deals a feature to the homes of its rows.

    The ids of a sample that have one home are summed there, by the weights with
    which the feature's combiner had combined the whole sample: the sum over homes
    is the sample's activation, and each row gets the gradient that it had.

    Args:
      ids: the feature.
      plan: how it is looked up.
      homes: the home of each id's row, an integer.
      num_homes: how many there are.
      has_vocabulary: whether ids below 0 are passed over.

    Returns:
      By home, sparse ids with weights, and the plan that sums them.
    """
    indices = indices_of(ids)
    weights, used = _weights(ids, plan, indices, has_vocabulary)
    nowhere = tf.fill(tf.shape(homes), num_homes)
    places = tf.dynamic_partition(
        tf.range(tf.size(homes)),
        tf.where(used, tf.cast(homes, tf.int32), nowhere),
        num_homes + 1,
    )
    columns = tf.reduce_max(tf.concat([indices[:, 1], [0]], 0)) + 1
    shares = [
        ops.FeatureIds(
            kind="sparse",
            ids=tf.gather(ids.ids, at_home),
            rows=tf.gather(indices, at_home),
            # A sequence's ids have no weights.
            weights=tf.zeros([0], tf.float32)
            if plan.max_sequence_length
            else tf.gather(weights, at_home),
            batch_size=ids.batch_size,
            dense_shape=(ids.batch_size, columns),
        )
        for at_home in places[:-1]
    ]
    # A sum takes weights of any sign as they are.
    summed = dataclasses.replace(plan, combiner="sum")
    return [(share, summed) for share in shares]


def share_of_core(
    ids: ops.FeatureIds,
    plan: ops.FeaturePlan,
    core: int,
    num_cores: int,
    *,
    has_vocabulary: bool,
) -> Share:
    """The ids of a feature whose rows are at home on one core.

    On a TPU with `use_gradient_accumulation=False`, a core applies the gradients
    of such rows by itself.

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
    if ids.ids.dtype == tf.string:
        home = tf.strings.to_hash_bucket_fast(ids.ids, num_cores)
    else:
        home = tf.math.floormod(ids.ids, tf.constant(num_cores, tf.int64))
    (share,) = dealt(
        ids,
        plan,
        tf.cast(tf.not_equal(home, core), tf.int32),
        1,
        has_vocabulary=has_vocabulary,
    )
    return share


def indices_of(ids: ops.FeatureIds) -> tf.Tensor:
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


def used_ids(
    ids: ops.FeatureIds, plan: ops.FeaturePlan, *, has_vocabulary: bool
) -> tf.Tensor | None:
    """Returns whether a lookup looks at each id, bool [n]; None: at all of them.

    Args:
      ids: the feature.
      plan: how it is looked up.
      has_vocabulary: whether ids below 0 are passed over.
    """
    if ids.kind != "sparse" or not plan.validate:
        return None
    conditions = [ids.ids >= 0] if has_vocabulary else []
    if plan.combiner != "sum" and ids.weights.shape[0] != 0:
        conditions.append(ids.weights > 0)
    if not conditions:
        return None
    return tf.reduce_all(tf.stack(conditions), 0)


def id_checks(
    ids: tf.Tensor, name: str, num_rows: int, *, are_padded: bool
) -> list[Any]:
    """Returns ops that fail where an id is no row of a table.

    Args:
      ids: int64 [n].
      name: of the feature, for the error.
      num_rows: of the table.
      are_padded: whether ids below 0 are allowed.
    """
    text = f"In {name}: ids must be in [0, {num_rows}), the table's rows"
    most = tf.constant(num_rows, tf.int64)
    checks = [tf.debugging.assert_less(ids, most, text)]
    if not are_padded:
        checks.append(tf.debugging.assert_non_negative(ids, text))
    return checks


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
    used = used_ids(ids, plan, has_vocabulary=has_vocabulary)
    if used is None:
        used = tf.ones(tf.shape(ids.ids), tf.bool)
    else:
        weights = tf.where(used, weights, tf.zeros_like(weights))
    if plan.combiner == "sum":
        return weights, used
    squares = weights if plan.combiner == "mean" else weights * weights
    total = tf.math.unsorted_segment_sum(squares, indices[:, 0], ids.batch_size)
    if plan.combiner == "sqrtn":
        total = tf.sqrt(total)
    divisors = tf.gather(total, indices[:, 0])
    return tf.math.divide_no_nan(weights, divisors), used
