"""Bags of ids, sparse or ragged, and how the rows of a bag are combined."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from tfembed import errors, ops
from tfembed.dynamic_embedding.lookups.trainable import TrainableWrapper
from tfembed.dynamic_embedding.lookups.watched_rows import note_lookup
from tfembed.dynamic_embedding.variables import arguments
from tfembed.dynamic_embedding.variables.embedding_weights import (
    EmbeddingWeights,
)
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.ops import private
from tfembed.ops.weight_gradients import with_weight_gradient

__all__ = [
    "Bags",
    "check_bags",
    "check_combiner",
    "default_key",
    "look_up_bags",
]

_COMBINERS = ("mean", "sqrtn", "sum")
_HALF = (tf.float16, tf.bfloat16)
_FUSED = (tf.float32, *_HALF)


@dataclasses.dataclass(frozen=True, eq=False)
class Bags:
    """Ids in bags, bag after bag.

    Attributes:
      ids: SparseTensor [batch, n] with sorted indices, or RaggedTensor of rank 2.
      weights: floats of the same kind and structure, or None: all 1.
    """

    ids: tf.SparseTensor | tf.RaggedTensor
    weights: tf.SparseTensor | tf.RaggedTensor | None

    @property
    def places(self) -> tf.Tensor:
        """The bag of each id, int64 [n]."""
        if isinstance(self.ids, tf.RaggedTensor):
            return tf.cast(self.ids.value_rowids(), tf.int64)
        return self.ids.indices[:, 0]

    @property
    def count(self) -> tf.Tensor:
        """The number of bags, int64 []."""
        if isinstance(self.ids, tf.RaggedTensor):
            return self.ids.nrows(tf.int64)
        return self.ids.dense_shape[0]


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


def check_bags(
    params: EmbeddingWeights, kind: type, ids: Any, weights: Any
) -> None:
    """Raises DtypeError for ids or weights of another type or dtype.

    Args:
      params: what they are looked up in.
      kind: tf.SparseTensor or tf.RaggedTensor.
      ids: the ids.
      weights: the weights, or None.
    """
    for argument, value in (("sp_ids", ids), ("sp_weights", weights)):
        if argument == "sp_weights" and value is None:
            continue
        if not isinstance(value, kind):
            raise errors.DtypeError(
                f"`{argument}` must be a {kind.__name__}; got "
                f"{type(value).__name__}."
            )
    params.verify_embedding_weights(ids)
    if weights is None:
        return
    dtypes = (tf.float32, params.value_dtype)
    allowed = dict.fromkeys(one.name for one in dtypes if one.is_floating)
    if weights.dtype.name not in allowed:
        raise errors.DtypeError(
            f"Weights must be {' or '.join(allowed)}; got "
            f"{weights.dtype.name} for '{params.name}'."
        )


def default_key(params: EmbeddingWeights, default_id: Any) -> tf.Tensor:
    """`default_id` as a key, for bags without ids.

    Args:
      params: what it is looked up in.
      default_id: one key; a tensor of integers may be narrower than keys.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) no key.
      tfembed.errors.ArgumentError: (also ValueError) several.
    """
    dtype, given = params.key_dtype, default_id
    if tf.is_tensor(given) and dtype.is_integer and given.dtype.is_integer:
        narrower = given.dtype.max < dtype.max
        default_id = tf.cast(given, dtype) if narrower else given
    try:
        key = arguments.id_tensor(default_id, params)
    except (TypeError, ValueError) as error:
        raise errors.DtypeError(
            f"`default_id` for '{params.name}' must be one {dtype.name} id; got "
            f"{given!r}."
        ) from error
    if key.shape.rank:
        raise errors.ArgumentError(
            f"`default_id` for '{params.name}' must be one {dtype.name} id; got "
            f"shape {key.shape}."
        )
    return key


def look_up_bags(
    params: EmbeddingWeights,
    bags: Bags,
    combiner: str,
    *,
    name: str,
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """The combined rows of each bag, [batch, dim].

    Args:
      params: what the ids are looked up in.
      bags: the ids and their weights, checked.
      combiner: "mean", "sqrtn" or "sum".
      name: of the lookup.
      max_norm: rows longer than this (L2) are scaled to it, before combining.
      return_trainable: whether to return what stands for the lookup of the
        distinct ids too.
    """
    if max_norm is None and not return_trainable and _fusible(params):
        return _fused(params, bags, combiner, name)
    ids, places = tf.unique(bags.ids.values)
    found = params.embedding_lookup(ids, name, max_norm, return_trainable)
    rows, *wrapper = found if return_trainable else (found,)
    weights = None if bags.weights is None else bags.weights.values
    rows = tf.gather(rows, places)
    combined = _combine(rows, weights, bags.places, bags.count, combiner)
    return (combined, *wrapper) if return_trainable else combined


def _fusible(params: Any) -> bool:
    return (
        isinstance(params, Variable)
        and params.shard_num == 1
        and params.key_dtype in (tf.int64, tf.string)
        and params.value_dtype in _FUSED
        and params.dim > 0
        and not params.table.is_drawn
    )


def _fused(params: Any, bags: Bags, combiner: str, name: str) -> tf.Tensor:
    """One op call for lookup and combination; one for its gradient."""
    feature = ops.feature_ids(bags.ids, bags.weights, name=params.name)
    plan = ops.FeaturePlan(table=0, combiner=combiner, validate=False)
    note_lookup(params)
    source = params if params.trainable else params.handle
    if params.trainable and private.in_session_graph():
        # What trainable_variables() lists.
        source = TrainableWrapper(params, bags.ids.values, name=name)
    (combined,) = ops.grouped_lookup([source], [params.dim], [feature], [plan])
    if bags.weights is not None:
        combined = with_weight_gradient(
            combined,
            feature,
            bags.places,
            params,
            functools.partial(_combine, combiner=combiner),
        )
    return tf.cast(combined, params.value_dtype)


def _combine(
    rows: tf.Tensor,
    weights: tf.Tensor | None,
    places: tf.Tensor,
    count: tf.Tensor,
    combiner: str,
) -> tf.Tensor:
    """Combines rows [n, dim] into [batch, dim]; half precision in float32."""
    dtype = rows.dtype
    if dtype in (tf.bool, tf.string):
        raise errors.DtypeError(
            f"Rows of {dtype.name} cannot be combined; look the ids up one by "
            "one with `embedding_lookup`."
        )
    if not dtype.is_floating and combiner != "sum":
        raise errors.DtypeError(
            f"Rows of {dtype.name} can be combined by 'sum' only; got combiner "
            f"'{combiner}'."
        )
    if dtype in _HALF:
        rows = tf.cast(rows, tf.float32)
    if weights is None:
        weights = tf.ones_like(places, rows.dtype)
    else:
        weights = tf.cast(weights, rows.dtype)
        rows *= weights[:, tf.newaxis]
    combined = tf.math.unsorted_segment_sum(rows, places, count)
    if combiner != "sum":
        squared = weights**2 if combiner == "sqrtn" else weights
        divisor = tf.math.unsorted_segment_sum(squared, places, count)
        if combiner == "sqrtn":
            divisor = tf.sqrt(divisor)
        combined = tf.math.divide_no_nan(combined, divisor[:, tf.newaxis])
    return tf.cast(combined, dtype)
