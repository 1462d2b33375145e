"""Lookups for serving and for plain tapes: stock TensorFlow, no step, no queue.

Static tables use TensorFlow's own ops alone, so a SavedModel of them needs no
tfembed. Hash tables use the table lookup op.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.inputs import check_ids
from tfembed.embedding.output_shapes import is_sequence
from tfembed.embedding.plan import feature_paths
from tfembed.embedding.pooling import Pooling, pool_ragged, pool_sparse
from tfembed.tables import HashTable

__all__ = ["serving_embedding_lookup"]


def serving_embedding_lookup(
    inputs: Any, weights: Any, tables: Mapping[Any, Any], feature_config: Any
) -> Any:
    """Looks features up in given tables, as TPUEmbedding does.

    Args:
      inputs: integer ids, or strings where the table has them: Tensors, SparseTensors of rank 2 or above, and
        RaggedTensors of rank 2, structured as feature_config, or a dict of some
        of its features.
      weights: None, or a structure like `inputs` of None and float tensors of
        the type and structure of the ids.
      tables: by TableConfig: a tf.Variable or Tensor [vocabulary_size, dim] or
        a HashTable, such as `TPUEmbedding.embedding_tables`.
      feature_config: a FeatureConfig or a `tf.nest` structure of them.

    Returns:
      Structured as `inputs`, float32: [B, dim] for Tensors [B] and [B, 1],
      RaggedTensors and SparseTensors; [B, max_sequence_length, dim] for
      sequence features, padded with zeros; [..., dim] for ids of higher rank.

    Raises:
      tfembed.errors.ArgumentError: inputs that are no part of feature_config,
        or weights or types that do not fit; it names the feature.
      tf.errors.InvalidArgumentError: an id outside of a static table.
    """
    features = dict(
        zip(
            feature_paths(feature_config),
            tf.nest.flatten(feature_config),
            strict=True,
        )
    )
    paths = feature_paths(inputs)
    unknown = [path for path in paths if path not in features]
    if unknown:
        raise errors.ArgumentError(
            f"Inputs {unknown} are not in feature_config, whose features are "
            f"{list(features)}."
        )
    values = tf.nest.flatten(inputs)
    weight_values = [None] * len(values)
    if weights is not None:
        tf.nest.assert_same_structure(inputs, weights)
        weight_values = tf.nest.flatten(weights)
    outputs = [
        _lookup(value, weight, tables, features[path], path)
        for value, weight, path in zip(
            values, weight_values, paths, strict=True
        )
    ]
    return tf.nest.pack_sequence_as(inputs, outputs)


def _lookup(
    value: Any, weights: Any, tables: Mapping[Any, Any], feature: Any, path: str
) -> tf.Tensor:
    name = path or "the only feature"
    _check(value, weights, feature, name)
    if feature.table not in tables:
        raise errors.ArgumentError(
            f"`tables` has no table for {name}: it needs the TableConfig named "
            f"{feature.table.name!r} as a key."
        )
    table = tables[feature.table]
    pooling = Pooling(
        rows=lambda ids: _rows(table, ids),
        dim=feature.table.dim,
        combiner=feature.table.combiner,
        validate=feature.validate_weights_and_indices,
        has_vocabulary=not isinstance(table, HashTable),
        sequence_length=(
            feature.max_sequence_length if is_sequence(feature) else 0
        ),
    )
    if isinstance(value, tf.SparseTensor):
        return pool_sparse(value, weights, pooling)
    if isinstance(value, tf.RaggedTensor):
        return pool_ragged(
            value, weights, pooling, feature.output_shape, path=name
        )
    if value.shape.rank is not None and value.shape.rank > 1:
        # One id per sample: [B, 1] is [B], as in training.
        value = tf.squeeze(value, -1) if value.shape[-1] == 1 else value
    return pooling.rows(value)


def _rows(table: Any, ids: tf.Tensor) -> tf.Tensor:
    if isinstance(table, HashTable):
        if ids.dtype != tf.string:
            ids = tf.cast(ids, tf.int64)
        return tf.cast(table.lookup(ids)[0], tf.float32)
    return tf.gather(table, ids)


def _check(value: Any, weights: Any, feature: Any, path: str) -> None:
    if not isinstance(value, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)):
        raise errors.ArgumentError(
            f"Input {path} is type {type(value)}. Tensor, SparseTensor or "
            "RaggedTensor expected."
        )
    is_dense = isinstance(value, tf.Tensor)
    if weights is not None:
        if is_dense:
            raise errors.ArgumentError(
                f"Weight specified for {path}, but input is dense."
            )
        if type(weights) is not type(value):
            raise errors.ArgumentError(
                f"Weight for {path} is of type {type(weights)} but it does not "
                f"match type of the input which is {type(value)}."
            )
        if feature.max_sequence_length > 0:
            raise errors.ArgumentError(
                f"Weight specified for {path}, but this is a sequence feature."
            )
    if is_dense and feature.max_sequence_length > 0:
        raise errors.ArgumentError(
            f"Feature {path} is a sequence feature but a dense tensor was "
            "passed."
        )
    check_ids(value.dtype, path, feature.table)
    if isinstance(value, tf.RaggedTensor) and value.shape.rank != 2:
        raise errors.ArgumentError(
            f"Only rank 2 ragged tensor is supported, but got rank "
            f"{value.shape.rank} for {path}"
        )
