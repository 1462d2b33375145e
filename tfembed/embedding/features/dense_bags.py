"""Dense ids of a layer: one of each sample, or a bag of several."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.features.output_shapes import is_sequence
from tfembed.embedding.plan import feature_paths

__all__ = ["as_bag", "weights_in_bags"]


def as_bag(
    value: Any, weights: Any, feature: Any, path: str
) -> tuple[Any, Any]:
    """Dense ids and weights as a lookup takes them.

    Args:
      value: ids [B] or [B, n].
      weights: None, or numbers of the same shape.
      feature: its FeatureConfig.
      path: what errors call it.

    Returns:
      Ids [B] where a sample has one without a weight, and it is no sequence; else
      RaggedTensors of the ids and their weights, [B, n].

    Raises:
      tfembed.errors.ArgumentError: another rank; weights of another type or
        shape, or of one id where it would be a sequence.
    """
    ids = tf.convert_to_tensor(value)
    if ids.shape.rank not in (1, 2):
        raise errors.ArgumentError(
            f"Only dense tensors of rank 1 and 2 are supported, found rank "
            f"{ids.shape.rank} for input {path}"
        )
    is_one = ids.shape.rank == 1 or (
        # Sequences of one id are sequences, as those before and after them.
        ids.shape[1] == 1 and not is_sequence(feature)
    )
    if weights is None:
        if is_one:
            return tf.reshape(ids, [-1]), None
        return tf.RaggedTensor.from_tensor(ids), None
    if is_one and is_sequence(feature):
        raise errors.ArgumentError(
            f"Weight specified for dense input {path}, a sequence feature with "
            "one id per sample, which is no sequence. Leave the weight out."
        )
    of_ids = _weights(weights, ids.shape, path)
    if is_one:
        ids, of_ids = (tf.reshape(one, [-1, 1]) for one in (ids, of_ids))
    return tf.RaggedTensor.from_tensor(ids), tf.RaggedTensor.from_tensor(of_ids)


def weights_in_bags(
    features: Any, weights: Any, feature_config: Any
) -> tuple[Any, Any]:
    """A batch whose weighted dense ids are RaggedTensors, with their weights.

    Args:
      features: ids, structured as feature_config.
      weights: structured so too.
      feature_config: a structure of FeatureConfigs.

    Returns:
      `features` and `weights`, structured as they were.

    Raises:
      tfembed.errors.ArgumentError: as `as_bag`.
      ValueError, TypeError: another structure.
    """
    tf.nest.assert_same_structure(feature_config, features)
    tf.nest.assert_same_structure(feature_config, weights)
    pairs = [
        as_bag(value, weight, feature, feature.name or path)
        if weight is not None and not _is_composite(value)
        else (value, weight)
        for value, weight, feature, path in zip(
            tf.nest.flatten(features),
            tf.nest.flatten(weights),
            tf.nest.flatten(feature_config),
            feature_paths(feature_config),
            strict=True,
        )
    ]
    values, of_values = zip(*pairs, strict=True)
    return (
        tf.nest.pack_sequence_as(features, values),
        tf.nest.pack_sequence_as(weights, of_values),
    )


def _weights(weights: Any, shape: tf.TensorShape, path: str) -> tf.Tensor:
    if _is_composite(weights):
        raise errors.ArgumentError(
            f"Weight for {path} is type {type(weights).__name__} which does "
            "not match type input which is Tensor."
        )
    of_ids = tf.convert_to_tensor(weights)
    if not of_ids.shape.is_compatible_with(shape):
        raise errors.ArgumentError(
            f"Weight for {path} has shape {of_ids.shape}, and its ids have "
            f"{shape}. Give each id one weight."
        )
    return of_ids


def _is_composite(value: Any) -> bool:
    return isinstance(value, (tf.SparseTensor, tf.RaggedTensor))
