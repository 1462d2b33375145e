"""Lookups by ragged ids that combine the rows of each row of ids."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.lookups.lookup import (
    Bags,
    check_bags,
    check_combiner,
    default_key,
    look_up_bags,
    single_weights,
)
from tfembed.dynamic_embedding.variables.arguments import (
    EmbeddingWeights,
    wide_bags,
)
from tfembed.ops.combiners import weights_like

__all__ = ["embedding_lookup_sparse", "safe_embedding_lookup_sparse"]


def embedding_lookup_sparse(
    params: Any,
    sp_ids: tf.RaggedTensor,
    sp_weights: tf.RaggedTensor | None,
    name: str | None = "embedding_lookup_sparse",
    combiner: str | None = "mean",
) -> tf.Tensor:
    """Combines the rows of the ids in each row of `sp_ids`, differentiable.

    It works as `embedding_lookup_sparse` for a SparseTensor.

    Args:
      params: a `ShadowVariable` or `Variable`, or a list of one.
      sp_ids: keys [batch, (n)].
      sp_weights: floats, row splits as `sp_ids`; None: all 1.
      name: the name of the lookup.
      combiner: "mean", "sqrtn" or "sum"; None: "mean".

    Returns:
      The combined rows [batch, dim] in the rows' dtype, zeros for an empty bag.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) an unknown combiner, or
        ids of another rank.
      tfembed.errors.DtypeError: (also TypeError) `sp_ids` or `sp_weights` is
        not a RaggedTensor, or ids or weights of another dtype.
    """
    params = single_weights(params)
    combiner = check_combiner(combiner)
    sp_ids = wide_bags(sp_ids, params)
    bags = _bags(params, sp_ids, sp_weights)
    name = name or "embedding_lookup_sparse"
    with tf.name_scope(name):
        return look_up_bags(params, bags, combiner, name=name)


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: tf.RaggedTensor,
    sparse_weights: tf.RaggedTensor | None = None,
    combiner: str | None = "mean",
    default_id: Any = None,
    name: str | None = None,
) -> tf.Tensor:
    """Prunes and fills ids, then works as `embedding_lookup_sparse`.

    Negative ids are ids like any other. Entries with a weight <= 0 are left out
    unless the combiner is "sum".

    Args:
      embedding_weights: a `ShadowVariable` or `Variable`, or a list of one.
      sparse_ids: keys [batch, (n)].
      sparse_weights: weights of the rows' dtype, row splits as `sparse_ids`;
        None: all 1.
      combiner: "mean", "sqrtn" or "sum"; None: "mean".
      default_id: the id whose row an empty bag gets; None: zeros.
      name: the name of the lookup.

    Returns:
      The combined rows [batch, dim] in the rows' dtype.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) weights of another dtype than
        the rows, or a `default_id` that is not a key.
      tfembed.errors.ArgumentError: (also ValueError) several `default_id`.
      Others as `embedding_lookup_sparse`.
    """
    params = single_weights(embedding_weights)
    combiner = check_combiner(combiner)
    sparse_ids = wide_bags(sparse_ids, params)
    bags = _bags(params, sparse_ids, sparse_weights)
    params.verify_embedding_weights(sparse_ids, sparse_weights)
    with tf.name_scope(name or "safe_embedding_lookup_sparse"):
        key = None if default_id is None else default_key(params, default_id)
        ids, weights = bags.ids, bags.weights
        if weights is not None and combiner != "sum":
            positive = weights.with_values(weights.values > 0)
            ids = tf.ragged.boolean_mask(ids, positive)
            kept = tf.boolean_mask(weights.values, positive.values)
            weights = ids.with_values(kept)
        if key is not None:
            empty = tf.cast(ids.row_lengths() == 0, ids.row_splits.dtype)
            ids = _fill(ids, empty, key)
            if weights is not None:
                one = tf.ones([], weights.dtype)
                weights = ids.with_values(_fill(weights, empty, one).values)
        return embedding_lookup_sparse(params, ids, weights, name, combiner)


def _bags(params: EmbeddingWeights, ids: Any, weights: Any) -> Bags:
    check_bags(params, tf.RaggedTensor, ids, weights)
    ids = _of_known_rank(ids)
    if ids.shape.rank != 2:
        raise errors.ArgumentError(
            "Ragged ids must have rank 2, one row a bag; got shape "
            f"{ids.shape}. Merge dimensions with `merge_dims` first."
        )
    if weights is not None:
        weights = weights_like(ids, _of_known_rank(weights), params.name)
    return Bags(ids, weights)


def _of_known_rank(ragged: tf.RaggedTensor) -> tf.RaggedTensor:
    """Adds a run-time check that values are a vector, if the rank is unknown.

    A placeholder without a shape may be fed values of any rank.
    """
    if ragged.shape.rank is not None or ragged.ragged_rank != 1:
        return ragged
    return ragged.with_values(tf.ensure_shape(ragged.values, [None]))


def _fill(
    ragged: tf.RaggedTensor, empty: tf.Tensor, value: tf.Tensor
) -> tf.RaggedTensor:
    """Puts one `value` into each row of `ragged` where `empty` is 1."""
    filler = tf.fill([tf.reduce_sum(empty)], value)
    fillers = tf.RaggedTensor.from_row_lengths(filler, empty, validate=False)
    return tf.concat([ragged, fillers], axis=1)
