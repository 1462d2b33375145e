"""Looking rows up by sparse ids and combining them row by row."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors, ops
from tfembed.dynamic_embedding.lookup import embedding_lookup, single_variable
from tfembed.dynamic_embedding.variable import Variable

__all__ = ["embedding_lookup_sparse"]

_COMBINERS = ("mean", "sqrtn", "sum")


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
    A bag whose divisor is 0 gives zeros.

    Args:
      params: a `Variable`, or a list of one.
      sp_ids: int64 [batch, n], indices in row-major order.
      sp_weights: floats, indices as `sp_ids`; None: all 1.
      partition_strategy: accepted for TFRA's sake.
      name: of the lookup.
      combiner: "mean", "sqrtn" or "sum"; None: "mean".
      max_norm: rows longer than this (L2) are scaled to it, before combining.
      return_trainable: whether to return the `TrainableWrapper` of the distinct
        ids too; eager mode only.

    Returns:
      float32 [batch, dim], zeros for an empty bag; with `return_trainable` a
      pair.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) an unknown combiner.
      tfembed.errors.DtypeError: (also TypeError) `sp_ids` or `sp_weights` is no
        SparseTensor, or ids or weights of another dtype.
    """
    del partition_strategy
    params = single_variable(params)
    combiner = check_combiner(combiner)
    check_sparse(params, sp_ids, sp_weights)
    name = name or "embedding_lookup_sparse"
    with tf.name_scope(name):
        if params.shard_num == 1 and max_norm is None and not return_trainable:
            return _fused(params, sp_ids, sp_weights, combiner)
        ids, places = tf.unique(sp_ids.values)
        found = embedding_lookup(
            params,
            ids,
            name=name,
            max_norm=max_norm,
            return_trainable=return_trainable,
        )
        rows, *wrapper = found if return_trainable else (found,)
        rows = tf.gather(rows, places)
        combined = _combine(rows, sp_ids, sp_weights, combiner)
        return (combined, *wrapper) if return_trainable else combined


def check_combiner(combiner: str | None) -> str:
    """The combiner; None is "mean".

    Raises:
      tfembed.errors.ArgumentError: an unknown one.
    """
    combiner = "mean" if combiner is None else combiner
    if combiner not in _COMBINERS:
        raise errors.ArgumentError(
            f"`combiner` must be one of {_COMBINERS}; got {combiner!r}."
        )
    return combiner


def check_sparse(params: Variable, sp_ids: Any, sp_weights: Any) -> None:
    """Raises DtypeError for ids or weights of another type or dtype."""
    for argument, value in (("sp_ids", sp_ids), ("sp_weights", sp_weights)):
        if argument == "sp_weights" and value is None:
            continue
        if not isinstance(value, tf.SparseTensor):
            raise errors.DtypeError(
                f"`{argument}` must be a SparseTensor; got {type(value).__name__}."
            )
    if sp_ids.dtype != params.key_dtype:
        raise errors.DtypeError(
            f"Ids of '{params.name}' must be {params.key_dtype.name}; got "
            f"{sp_ids.dtype.name}."
        )
    if sp_weights is not None and not sp_weights.dtype.is_floating:
        raise errors.DtypeError(
            f"Weights must be floats; got {sp_weights.dtype.name} for "
            f"'{params.name}'."
        )


def _fused(
    params: Variable,
    sp_ids: tf.SparseTensor,
    sp_weights: tf.SparseTensor | None,
    combiner: str,
) -> tf.Tensor:
    """One op call for lookup and combination; one for its gradient."""
    feature = ops.feature_ids(sp_ids, sp_weights, name=params.name)
    plan = ops.FeaturePlan(table=0, combiner=combiner, validate=False)
    source = params if params.trainable else params.handle
    (combined,) = ops.grouped_lookup([source], [params.dim], [feature], [plan])
    return combined


def _combine(
    rows: tf.Tensor,
    sp_ids: tf.SparseTensor,
    sp_weights: tf.SparseTensor | None,
    combiner: str,
) -> tf.Tensor:
    """Combines rows [n, dim] into [batch, dim]."""
    bags, num_bags = sp_ids.indices[:, 0], sp_ids.dense_shape[0]
    if sp_weights is None:
        weights = tf.ones([tf.size(bags)], rows.dtype)
    else:
        weights = tf.cast(sp_weights.values, rows.dtype)
    summed = tf.math.unsorted_segment_sum(
        rows * weights[:, tf.newaxis], bags, num_bags
    )
    if combiner == "sum":
        return summed
    if combiner == "mean":
        divisor = tf.math.unsorted_segment_sum(weights, bags, num_bags)
    else:
        squares = tf.math.unsorted_segment_sum(weights**2, bags, num_bags)
        divisor = tf.sqrt(squares)
    return tf.math.divide_no_nan(summed, divisor[:, tf.newaxis])
