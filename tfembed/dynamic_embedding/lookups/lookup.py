"""Lookups of rows by dense and sparse ids."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from tfembed import errors, ops
from tfembed.dynamic_embedding.lookups.trainable import TrainableWrapper
from tfembed.dynamic_embedding.tensorflow1.graph_variables import has_variables
from tfembed.dynamic_embedding.variables import arguments
from tfembed.dynamic_embedding.variables.arguments import EmbeddingWeights
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.ops import private
from tfembed.ops.combiners import weights_like, with_weight_gradient
from tfembed.ops.model_calls import note_lookup

__all__ = [
    "Bags",
    "check_bags",
    "check_combiner",
    "default_key",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "look_up_bags",
    "safe_embedding_lookup_sparse",
]


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

    With weights w (1 without `sp_weights`) and the rows e of a bag of ids:
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
      name: the name of the lookup.
      combiner: "mean", "sqrtn" or "sum"; None: "mean".
      max_norm: rows longer than this (L2) are scaled to it, before combining.
      return_trainable: whether to return a pair, also with the
        `TrainableWrapper` of the distinct ids (not inside of a tf.function), or
        the `ShadowVariable`.

    Returns:
      The combined rows [batch, dim] in the rows' dtype, zeros for an empty bag;
      with `return_trainable` a pair.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) an unknown combiner.
      tfembed.errors.DtypeError: (also TypeError) `sp_ids` or `sp_weights` is
        not a SparseTensor, ids or weights of another dtype, or a `max_norm` for
        rows that are not floats.
      tf.errors.InvalidArgumentError: the weights' indices differ from the ids',
        when the op runs.
    """
    del partition_strategy
    params = single_weights(params)
    combiner = check_combiner(combiner)
    sp_ids = arguments.wide_bags(sp_ids, params)
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
        if sp_ids.shape.rank:  # Reshaping loses the static shape.
            rows.set_shape([sp_ids.shape[0], params.dim])
        return found


def _of_rank_2(sparse: tf.SparseTensor) -> tf.SparseTensor:
    """Reshapes [batch, ...] to [batch, n], in the same order."""
    if sparse.shape.rank == 2:
        return sparse
    shape = sparse.dense_shape
    flat = tf.stack([shape[0], tf.reduce_prod(shape[1:])])
    return tf.sparse.reshape(sparse, flat)


def embedding_lookup(
    params: Any,
    ids: Any,
    partition_strategy: str | None = None,
    name: str | None = None,
    validate_indices: bool | None = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """Returns the rows of `ids`, differentiable.

    `tape.gradient(loss, params)` has one entry for each id looked up, repeats
    included; `DynamicEmbeddingOptimizer` sums them. A missing id gives its
    initial row; the update inserts it.

    Args:
      params: a `Variable` or `ShadowVariable`, or a list of one.
      ids: keys of any shape.
      partition_strategy: accepted for TFRA's sake.
      name: the name of the lookup; required in eager mode.
      validate_indices: accepted for TFRA's sake.
      max_norm: rows longer than this (L2) are scaled to it. The gradient goes
        through the scaling, as with `tf.nn.embedding_lookup`.
      return_trainable: whether to return a pair, also with this lookup's
        `TrainableWrapper` (not inside of a tf.function), or the
        `ShadowVariable`.

    Returns:
      Rows, ids.shape + [dim]; with `return_trainable` a pair.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) `params` is not a `Variable`,
        ids of another dtype, or a `max_norm` for rows that are not floats.
      tfembed.errors.ArgumentError: (also ValueError) no `name` in eager mode,
        or several `params`.
      tfembed.errors.UnsupportedError: (also NotImplementedError)
        `return_trainable` inside a tf.function.
    """
    del partition_strategy, validate_indices
    params = single_weights(params)
    if name is None and tf.executing_eagerly():
        raise errors.ArgumentError(
            "In eager mode a lookup must have a `name`; got None."
        )
    return params.embedding_lookup(ids, name, max_norm, return_trainable)


def embedding_lookup_unique(
    params: Any,
    ids: Any,
    partition_strategy: str | None = None,
    name: str | None = None,
    validate_indices: bool | None = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """Looks up as `embedding_lookup`, but fetches each distinct id once.

    The gradient is the same, with one entry for each distinct id. Inside of
    tf.vectorized_map each id is fetched: TensorFlow stacks what all parts give,
    and they have different numbers of distinct ids.
    """
    params = single_weights(params)
    if private.is_vectorized():
        return embedding_lookup(
            params,
            arguments.id_tensor(ids, params),
            partition_strategy,
            name,
            validate_indices,
            max_norm,
            return_trainable,
        )
    with tf.name_scope("embedding_lookup_unique"):
        ids = arguments.id_tensor(ids, params)
        distinct, positions = tf.unique(tf.reshape(ids, [-1]))
    found = embedding_lookup(
        params,
        distinct,
        partition_strategy,
        name,
        validate_indices,
        max_norm,
        return_trainable,
    )
    rows, *wrapper = found if return_trainable else (found,)
    shape = tf.concat([tf.shape(ids), [params.dim]], 0)
    rows = tf.reshape(tf.gather(rows, positions), shape)
    rows.set_shape(ids.shape.concatenate([params.dim]))
    return (rows, *wrapper) if return_trainable else rows


def single_weights(params: Any) -> EmbeddingWeights:
    """Returns the single variable of `params`.

    Raises:
      tfembed.errors.ArgumentError: a list of several variables.
      tfembed.errors.DtypeError: neither a `Variable` nor a `ShadowVariable`.
    """
    if isinstance(params, (list, tuple)):
        if len(params) != 1:
            raise errors.ArgumentError(
                f"`params` must be one Variable; got a list of {len(params)}. "
                "Shards of one table are made with `devices`."
            )
        (params,) = params
    if not isinstance(params, EmbeddingWeights):
        raise errors.DtypeError(
            "`params` must be a Variable or ShadowVariable of "
            f"tfembed.dynamic_embedding; got {type(params).__name__}."
        )
    return params


_COMBINERS = ("mean", "sqrtn", "sum")

_HALF = (tf.float16, tf.bfloat16)

_FUSED = (tf.float32, *_HALF)


@dataclasses.dataclass(frozen=True, eq=False)
class Bags:
    """A batch of ids in bags, bag after bag.

    Attributes:
      ids: SparseTensor [batch, n] with sorted indices, or RaggedTensor of rank
        2.
      weights: floats of the same tensor type and structure; None: all 1.
    """

    ids: tf.SparseTensor | tf.RaggedTensor
    weights: tf.SparseTensor | tf.RaggedTensor | None

    @property
    def bag_of_each(self) -> tf.Tensor:
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
    """Returns the combiner, checked; None is "mean".

    Raises:
      tfembed.errors.ArgumentError: an unknown combiner.
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
      params: the variable or shadow to look up in.
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
    """Converts `default_id`, for bags without ids, to a key.

    Args:
      params: the variable or shadow to look up in.
      default_id: one key; a tensor of integers may be narrower than keys.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) not a key.
      tfembed.errors.ArgumentError: (also ValueError) several keys.
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
    """Returns the combined rows of each bag, [batch, dim].

    Args:
      params: the variable or shadow to look up in.
      bags: the ids and their weights, checked.
      combiner: "mean", "sqrtn" or "sum".
      name: the name of the lookup.
      max_norm: rows longer than this (L2) are scaled to it, before combining.
      return_trainable: whether to return a pair, also with the wrapper or
        shadow of the lookup of the distinct ids.
    """
    if max_norm is None and not return_trainable and _fusible(params):
        return _fused(params, bags, combiner, name)
    ids, positions = tf.unique(bags.ids.values)
    found = params.embedding_lookup(ids, name, max_norm, return_trainable)
    rows, *wrapper = found if return_trainable else (found,)
    weights = None if bags.weights is None else bags.weights.values
    rows = tf.gather(rows, positions)
    combined = ops.combine(
        rows, weights, bags.bag_of_each, bags.count, combiner
    )
    return (combined, *wrapper) if return_trainable else combined


def _fusible(params: Any) -> bool:
    return (
        isinstance(params, Variable)
        and params.shard_num == 1
        and params.workers is None
        and params.key_dtype in (tf.int64, tf.string)
        and params.value_dtype in _FUSED
        and params.dim > 0
        and not params.table.is_drawn
    )


def _fused(params: Any, bags: Bags, combiner: str, name: str) -> tf.Tensor:
    """Looks up and combines by one op call; the gradient is one op call too."""
    feature = ops.feature_ids(bags.ids, bags.weights, name=params.name)
    plan = ops.FeaturePlan(table=0, combiner=combiner, validate=False)
    note_lookup(params)
    source = params if params.trainable else params.handle
    if has_variables(params):
        source = TrainableWrapper(params, bags.ids.values, name=name)
    (combined,) = ops.grouped_lookup([source], [params.dim], [feature], [plan])
    if bags.weights is not None:
        combined = with_weight_gradient(
            combined,
            feature,
            bags.bag_of_each,
            params,
            functools.partial(ops.combine, combiner=combiner),
        )
    return tf.cast(combined, params.value_dtype)


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
    """Prunes and fills ids, then combines rows along the last dimension.

    Negative ids are ids like any other. Entries with a weight <= 0 are left out
    unless the combiner is "sum". Else it works as `embedding_lookup_sparse`.

    Args:
      embedding_weights: a `Variable` or `ShadowVariable`, or a list of one.
      sparse_ids: keys [d_0, ..., d_n], n >= 1.
      sparse_weights: weights of the rows' dtype, indices as `sparse_ids`; None:
        all 1.
      combiner: "mean", "sqrtn" or "sum"; None: "mean".
      default_id: the id whose row an empty bag gets; None: zeros.
      name: the name of the lookup.
      partition_strategy: accepted for TFRA's sake.
      max_norm: rows longer than this (L2) are scaled to it, before combining.
      return_trainable: whether to return a pair, also with the
        `TrainableWrapper` of the distinct ids (not inside of a tf.function), or
        the `ShadowVariable`.

    Returns:
      The combined rows [d_0, ..., d_(n-1), dim] in the rows' dtype; with
      `return_trainable` a pair.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) weights of another dtype
        than the rows, or a `default_id` that is not a key.
      tfembed.errors.ArgumentError: (also ValueError) several `default_id`.
      Others as `embedding_lookup_sparse`.
    """
    params = single_weights(embedding_weights)
    combiner = check_combiner(combiner)
    sparse_ids = arguments.wide_bags(sparse_ids, params)
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
    """Reshapes [d_0, ..., d_n] to [d_0 * ... * d_(n-1), d_n]."""
    rows = tf.reduce_prod(shape[:-1])
    return tf.sparse.reshape(sparse, tf.stack([rows, shape[-1]]))


def _fill(sparse: tf.SparseTensor, value: tf.Tensor) -> tf.SparseTensor:
    """Puts `value` into each empty row of [batch, n], even if n is 0."""
    filled, _ = tf.sparse.fill_empty_rows(sparse, value)
    shape = tf.maximum(filled.dense_shape, [0, 1])
    return tf.SparseTensor(filled.indices, filled.values, shape)
