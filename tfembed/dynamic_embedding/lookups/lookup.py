"""Looking rows up by dense ids."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.variables import arguments
from tfembed.dynamic_embedding.variables.embedding_weights import (
    EmbeddingWeights,
)

__all__ = ["embedding_lookup", "embedding_lookup_unique"]


def embedding_lookup(
    params: Any,
    ids: Any,
    partition_strategy: str | None = None,
    name: str | None = None,
    validate_indices: bool | None = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """The rows of `ids`, differentiable.

    `tape.gradient(loss, params)` gives one entry for each id looked up, repeats
    included; `DynamicEmbeddingOptimizer` sums them. A missing id reads as its
    initial row and is inserted by the update.

    Args:
      params: a `Variable` or `ShadowVariable`, or a list of one.
      ids: keys of any shape.
      partition_strategy: accepted for TFRA's sake.
      name: of the lookup; required in eager mode.
      validate_indices: accepted for TFRA's sake.
      max_norm: rows longer than this (L2) are scaled to it. The gradient goes
        through the scaling, as with `tf.nn.embedding_lookup`.
      return_trainable: whether to return this lookup's `TrainableWrapper` too,
        not inside of a tf.function; or the `ShadowVariable`.

    Returns:
      Rows, ids.shape + [dim]; with `return_trainable` a pair.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) `params` is no `Variable`, ids
        of another dtype, or a `max_norm` for rows that are no floats.
      tfembed.errors.ArgumentError: (also ValueError) no `name` in eager mode, or
        several `params`.
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
    """`embedding_lookup` that fetches each distinct id once.

    The gradient is the same, with one entry for each distinct id.
    """
    params = single_weights(params)
    with tf.name_scope("embedding_lookup_unique"):
        ids = arguments.id_tensor(ids, params)
        distinct, places = tf.unique(tf.reshape(ids, [-1]))
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
    rows = tf.reshape(tf.gather(rows, places), shape)
    rows.set_shape(ids.shape.concatenate([params.dim]))
    return (rows, *wrapper) if return_trainable else rows


def single_weights(params: Any) -> EmbeddingWeights:
    """The one variable of `params`.

    Raises:
      tfembed.errors.ArgumentError: a list of several.
      tfembed.errors.DtypeError: neither `Variable` nor `ShadowVariable`.
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
