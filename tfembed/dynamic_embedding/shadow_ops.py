"""Lookups through a `ShadowVariable`, for tf.functions and layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.lookups.shadow_variable import (
    HvdVariable,
    ShadowVariable,
)
from tfembed.dynamic_embedding.variables import arguments

__all__ = [
    "DEResourceVariable",
    "HvdVariable",
    "ShadowVariable",
    "embedding_lookup",
    "embedding_lookup_unique",
    "embedding_lookup_unique_base",
]

# TFRA's name for a dense variable that its optimizer trains like a table.
DEResourceVariable = tf.Variable


def embedding_lookup(
    shadow: ShadowVariable,
    ids: Any,
    partition_strategy: str | None = None,
    name: str | None = None,
    validate_indices: bool | None = None,
) -> Any:
    """Returns the rows of `ids`, with a gradient for `shadow`.

    Args:
      shadow: the `ShadowVariable`.
      ids: keys of any shape, or a RaggedTensor of them.
      partition_strategy: accepted for TFRA's sake.
      name: the name of the lookup.
      validate_indices: accepted for TFRA's sake.

    Returns:
      Rows, ids.shape + [dim]; ragged if the ids are.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) ids of another dtype.
      tfembed.errors.DtypeError: (also TypeError) not a `ShadowVariable`.
    """
    del partition_strategy, validate_indices
    if not isinstance(shadow, ShadowVariable):
        raise errors.DtypeError(
            f"`shadow` must be a ShadowVariable; got {type(shadow).__name__}."
        )
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(
            embedding_lookup(shadow, ids.flat_values, name=name)
        )
    ids = arguments.id_tensor(ids, shadow, errors.ArgumentError)
    return shadow.embedding_lookup(ids, name)


def embedding_lookup_unique(
    shadow: ShadowVariable,
    ids: Any,
    embedding_size: int,
    with_unique: bool = True,
    name: str | None = None,
) -> Any:
    """Looks up dense or ragged ids, each distinct id once.

    Args:
      shadow: the `ShadowVariable`.
      ids: keys of any shape, or a RaggedTensor of them.
      embedding_size: the table's `dim`.
      with_unique: whether to look up each distinct id once.
      name: the name of the lookup.

    Returns:
      Rows, ids.shape + [embedding_size]; ragged where the ids are.

    Raises:
      tfembed.errors.ArgumentError: another `embedding_size`, or ids of another
        dtype.
    """
    if isinstance(shadow, ShadowVariable) and embedding_size != shadow.dim:
        raise errors.ArgumentError(
            f"`embedding_size` must be the dim of '{shadow.name}', "
            f"{shadow.dim}; got {embedding_size!r}."
        )
    if not isinstance(ids, tf.RaggedTensor):
        ids = arguments.id_tensor(ids, shadow, errors.ArgumentError)
    return embedding_lookup_unique_base(
        ids,
        embedding_size,
        lambda distinct: embedding_lookup(shadow, distinct),
        with_unique,
        name,
    )


def embedding_lookup_unique_base(
    ids: Any,
    embedding_size: int,
    lookup_function: Callable[[tf.Tensor], tf.Tensor],
    with_unique: bool = True,
    name: str | None = None,
) -> Any:
    """Looks up dense or ragged ids by a function, each distinct id once.

    Args:
      ids: ids of any shape, or a RaggedTensor.
      embedding_size: width of a row.
      lookup_function: ids [n] -> rows [n, embedding_size].
      with_unique: whether to call `lookup_function` with the distinct ids only.
      name: the name of the lookup.

    Returns:
      Rows, ids.shape + [embedding_size]; ragged where the ids are.
    """
    with tf.name_scope(name or "embedding_lookup_unique"):
        if isinstance(ids, tf.RaggedTensor):
            rows = embedding_lookup_unique_base(
                ids.flat_values, embedding_size, lookup_function, with_unique
            )
            return ids.with_flat_values(rows)
        ids = tf.convert_to_tensor(ids)
        flat = tf.reshape(ids, [-1])
        if with_unique:
            distinct, positions = tf.unique(flat)
            rows = tf.gather(lookup_function(distinct), positions)
        else:
            rows = lookup_function(flat)
        rows = tf.reshape(rows, tf.concat([tf.shape(ids), [embedding_size]], 0))
        rows.set_shape(ids.shape.concatenate([embedding_size]))
        return rows
