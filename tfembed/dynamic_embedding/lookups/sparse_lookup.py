"""Looking rows up by sparse ids and combining them row by row."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.lookups.bags import (
    Bags,
    check_bags,
    check_combiner,
    look_up_bags,
)
from tfembed.dynamic_embedding.lookups.lookup import single_weights
from tfembed.ops.weight_places import weights_like

__all__ = ["embedding_lookup_sparse"]


def embedding_lookup_sparse(
    params: Any,
    sp_ids: tf.SparseTensor,
    sp_weights: tf.SparseTensor | None,
    partition_strategy: str | None = None,
    name: str | None = "embedding_lookup_sparse",
    combiner: str | None = "mean",
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """Combines the rows of the ids in each row of `sp_ids`, differentiable.

    With weights w (1 without `sp_weights`) and rows e of a bag of ids:
      sum: S = sum(w e);  mean: S / sum(w);  sqrtn: S / sqrt(sum(w^2)).
    A bag whose divisor is 0 gives zeros. Rows of float16 and bfloat16 are
    combined in float32.

    Args:
      params: a `Variable` or `ShadowVariable`, or a list of one.
      sp_ids: keys [batch, ...], usually [batch, n], indices in row-major order.
        All ids of an example are one bag, whatever the rank.
      sp_weights: float32 or of the rows' dtype, indices as `sp_ids`; None: all
        1.
      partition_strategy: accepted for TFRA's sake.
      name: of the lookup.
      combiner: "mean", "sqrtn" or "sum"; None: "mean".
      max_norm: rows longer than this (L2) are scaled to it, before combining.
      return_trainable: whether to return the `TrainableWrapper` of the distinct
        ids too, not inside of a tf.function; or the `ShadowVariable`.

    Returns:
      Of the rows' dtype [batch, dim], zeros for an empty bag; with `return_trainable` a
      pair.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) an unknown combiner.
      tfembed.errors.DtypeError: (also TypeError) `sp_ids` or `sp_weights` is no
        SparseTensor, ids or weights of another dtype, or a `max_norm` for rows
        that are no floats.
      tf.errors.InvalidArgumentError: weights that do not stand where their ids
        stand, when the op runs.
    """
    del partition_strategy
    params = single_weights(params)
    combiner = check_combiner(combiner)
    check_bags(params, tf.SparseTensor, sp_ids, sp_weights)
    name = name or "embedding_lookup_sparse"
    with tf.name_scope(name):
        if sp_weights is not None:
            sp_weights = weights_like(sp_ids, sp_weights, params.name)
        bags = Bags(
            _of_rank_2(sp_ids),
            None if sp_weights is None else _of_rank_2(sp_weights),
        )
        found = look_up_bags(
            params,
            bags,
            combiner,
            name=name,
            max_norm=max_norm,
            return_trainable=return_trainable,
        )
        rows = found[0] if return_trainable else found
        if sp_ids.shape.rank:  # Which reshaping forgets.
            rows.set_shape([sp_ids.shape[0], params.dim])
        return found


def _of_rank_2(sparse: tf.SparseTensor) -> tf.SparseTensor:
    """[batch, ...] -> [batch, n], in the same order."""
    if sparse.shape.rank == 2:
        return sparse
    shape = sparse.dense_shape
    flat = tf.stack([shape[0], tf.reduce_prod(shape[1:])])
    return tf.sparse.reshape(sparse, flat)
