"""Sparse lookups that take any input: empty bags, weights <= 0, more ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.lookups.bags import (
    check_bags,
    check_combiner,
    default_key,
)
from tfembed.dynamic_embedding.lookups.lookup import single_weights
from tfembed.dynamic_embedding.lookups.sparse_lookup import (
    embedding_lookup_sparse,
)
from tfembed.ops.weight_places import weights_like

__all__ = ["safe_embedding_lookup_sparse"]


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: tf.SparseTensor,
    sparse_weights: tf.SparseTensor | None = None,
    combiner: str | None = "mean",
    default_id: Any = None,
    name: str | None = "safe_embedding_lookup_sparse",
    partition_strategy: str | None = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """`embedding_lookup_sparse` that prunes, fills and reduces the last dimension.

    Negative ids are ids like any other. Entries with a weight <= 0 are left out
    unless the combiner is "sum".

    Args:
      embedding_weights: a `Variable` or `ShadowVariable`, or a list of one.
      sparse_ids: keys [d_0, ..., d_n], n >= 1.
      sparse_weights: of the rows' dtype, indices as `sparse_ids`; None: all 1.
      combiner: "mean", "sqrtn" or "sum"; None: "mean".
      default_id: the id whose row an empty bag gets; None: zeros.
      name: of the lookup.
      partition_strategy: accepted for TFRA's sake.
      max_norm: rows longer than this (L2) are scaled to it, before combining.
      return_trainable: whether to return the `TrainableWrapper` of the distinct
        ids too, not inside of a tf.function; or the `ShadowVariable`.

    Returns:
      Of the rows' dtype [d_0, ..., d_(n-1), dim]; with `return_trainable` a pair.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) weights of another dtype
        than the rows, or a `default_id` that is no key.
      tfembed.errors.ArgumentError: (also ValueError) several `default_id`.
      Others as `embedding_lookup_sparse`.
    """
    params = single_weights(embedding_weights)
    combiner = check_combiner(combiner)
    check_bags(params, tf.SparseTensor, sparse_ids, sparse_weights)
    params.verify_embedding_weights(sparse_ids, sparse_weights)
    name = name or "safe_embedding_lookup_sparse"
    with tf.name_scope(name):
        key = None if default_id is None else default_key(params, default_id)
        shape = tf.cast(sparse_ids.dense_shape, tf.int64)
        ids = _as_matrix(sparse_ids, shape)
        weights = None
        if sparse_weights is not None:
            weights = weights_like(sparse_ids, sparse_weights, params.name)
            weights = ids.with_values(weights.values)
        if weights is not None and combiner != "sum":
            positive = weights.values > 0
            ids = tf.sparse.retain(ids, positive)
            weights = ids.with_values(tf.boolean_mask(weights.values, positive))
        if key is not None:
            ids = _fill(ids, key)
            if weights is not None:
                filled = _fill(weights, tf.ones([], weights.dtype))
                weights = ids.with_values(filled.values)
        found = embedding_lookup_sparse(
            params,
            ids,
            weights,
            partition_strategy,
            name,
            combiner,
            max_norm,
            return_trainable,
        )
        combined, *wrapper = found if return_trainable else (found,)
        combined = tf.reshape(
            combined, tf.concat([shape[:-1], [params.dim]], 0)
        )
        combined.set_shape(sparse_ids.shape[:-1].concatenate([params.dim]))
        return (combined, *wrapper) if return_trainable else combined


def _as_matrix(sparse: tf.SparseTensor, shape: tf.Tensor) -> tf.SparseTensor:
    """[d_0, ..., d_n] as [d_0 * ... * d_(n-1), d_n]."""
    rows = tf.reduce_prod(shape[:-1])
    return tf.sparse.reshape(sparse, tf.stack([rows, shape[-1]]))


def _fill(sparse: tf.SparseTensor, value: tf.Tensor) -> tf.SparseTensor:
    """[batch, n] with `value` in each empty row, also where n was 0."""
    filled, _ = tf.sparse.fill_empty_rows(sparse, value)
    shape = tf.maximum(filled.dense_shape, [0, 1])
    return tf.SparseTensor(filled.indices, filled.values, shape)
