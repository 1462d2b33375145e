"""Lookups for serving, in tables that somebody else trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.direct_lookup import SERVING, look_up
from tfembed.embedding.features.packed_features import PackedFeatures, unpacked
from tfembed.embedding.plan import feature_paths

__all__ = ["serving_embedding_lookup"]


def serving_embedding_lookup(
    inputs: Any, weights: Any, tables: Mapping[Any, Any], feature_config: Any
) -> Any:
    """Looks features up in given tables, as TPUEmbedding does.

    Args:
      inputs: integer ids, or strings where the table has them: Tensors,
        SparseTensors of rank 2 or above, and RaggedTensors of rank 2, structured
        as feature_config or as a part of it: features are matched by their keys
        in the structure, as of TensorFlow 2.21. So dicts may leave features out,
        tuples the last ones, and `{1: ids}` is the second feature of a tuple. Or
        all of them as `pack_features` gives them.
      weights: None, or a structure like `inputs` of None and float tensors of
        the type and structure of the ids.
      tables: by TableConfig: a tf.Variable or Tensor [vocabulary_size, dim] of
        float32, float64, float16 or bfloat16, or a HashTable, such as
        `TPUEmbedding.embedding_tables`.
      feature_config: a FeatureConfig or a `tf.nest` structure of them.

    Returns:
      Structured as `inputs`: [B, dim] for Tensors [B] and [B, 1],
      RaggedTensors and SparseTensors; [B, max_sequence_length, dim] for
      sequence features, padded with zeros; [..., dim] for ids of higher rank.
      Of the table's dtype, as TensorFlow's, but float32 from a table without a
      vocabulary. Rows of float16 and bfloat16 are combined in float32.

    Raises:
      tfembed.errors.ArgumentError: inputs that are no part of feature_config,
        or weights or types that do not fit; it names the feature.
      tfembed.errors.MissingTableError: a table that is not in `tables`.
      tfembed.errors.UnsupportedError: input for a CustomCombiner; in a function
        for XLA also sequences of ragged input and sparse input of a rank above 2.
      tfembed.errors.DtypeError: ids that are not of their table's dtype, or rows
        to combine that are no floats.
      ValueError, TypeError: weights that are not structured as `inputs`.
      tf.errors.InvalidArgumentError: an id outside of a static table.
    """
    if isinstance(inputs, PackedFeatures):
        return _serve_packed(inputs, weights, tables, feature_config)
    asked_for = _asked_for(inputs, feature_config)
    values = tf.nest.flatten(inputs)
    weight_values = [None] * len(values)
    if weights is not None:
        tf.nest.assert_same_structure(inputs, weights)
        weight_values = tf.nest.flatten(weights)
    outputs = look_up(
        [
            (path or "the only feature", feature)
            for path, feature in zip(
                feature_paths(inputs), asked_for, strict=True
            )
        ],
        values,
        weight_values,
        tables,
        SERVING,
    )
    return tf.nest.pack_sequence_as(inputs, outputs)


def _asked_for(inputs: Any, feature_config: Any) -> list[Any]:
    """The FeatureConfig of each input, found by the keys that lead to it."""
    features = tf.nest.flatten(feature_config)
    paths = feature_paths(feature_config)
    # The last of two that have one path, as TensorFlow; but where the keys are
    # the same (not "a/b" and "a" with "b" in it), there is no doubt.
    by_path = dict(zip(paths, features, strict=True))
    by_keys = dict(zip(_keys(feature_config), features, strict=True))
    wanted = feature_paths(inputs)
    unknown = [path for path in wanted if path not in by_path]
    if unknown:
        raise errors.ArgumentError(
            f"Inputs {unknown} are not in feature_config, whose features are "
            f"{paths}. An input without keys is ''. Give the inputs, or a part "
            "of them, structured as feature_config."
        )
    return [
        by_keys.get(keys, by_path[path])
        for keys, path in zip(_keys(inputs), wanted, strict=True)
    ]


def _keys(structure: Any) -> list[tuple[str, ...]]:
    """The keys of each leaf of a `tf.nest` structure."""
    found = tf.__internal__.nest.yield_flat_paths(structure)
    return [tuple(map(str, keys)) for keys in found]


def _serve_packed(
    packed: PackedFeatures, weights: Any, tables: Any, feature_config: Any
) -> Any:
    values, weight_values = unpacked(
        packed, feature_config, weights, by_tensorflow=True
    )
    return serving_embedding_lookup(
        tf.nest.pack_sequence_as(feature_config, values),
        tf.nest.pack_sequence_as(feature_config, weight_values),
        tables,
        feature_config,
    )
