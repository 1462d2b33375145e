"""A batch's input, as users give it, made ready for the grouped ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding import output_shapes
from tfembed.embedding.output_shapes import OutputShapes
from tfembed.embedding.step_format import StepFormat, format_of
from tfembed.ops import FeatureIds, feature_ids

__all__ = ["BatchInput", "read_batch", "read_input"]


@dataclasses.dataclass(frozen=True, eq=False)
class BatchInput:
    """One replica's batch.

    Attributes:
      ids: the features' tensors.
      formats: how they are read.
      shapes: the output shapes, now that an input was seen.
    """

    ids: list[FeatureIds]
    formats: list[StepFormat]
    shapes: OutputShapes


def read_batch(
    values: Sequence[Any], weights: Sequence[Any], shapes: OutputShapes
) -> BatchInput:
    """Reads one replica's batch and checks all of it.

    Args:
      values: per feature what `read_input` takes.
      weights: per feature None or its weights.
      shapes: what is known before.

    Raises:
      tfembed.errors.ArgumentError: an input or a shape that is not allowed.
      tfembed.errors.DtypeError: ids or weights that are no numbers.
      tfembed.errors.UnsupportedError: string ids.
    """
    features, paths = shapes.features, shapes.paths
    shapes = shapes.with_inputs(
        [
            output_shapes.detected_input_shape(feature, value, path)
            for feature, value, path in zip(
                features, values, paths, strict=True
            )
        ]
    )
    ids, formats = [], []
    for i, (value, weight) in enumerate(zip(values, weights, strict=True)):
        one, checked = format_of(
            features[i],
            read_input(value, weight, paths[i]),
            path=paths[i],
            input_shape=value.shape,
            output_shape=shapes.shapes[i],
        )
        formats.append(one)
        ids.append(checked)
    return BatchInput(ids, formats, shapes)


def read_input(value: Any, weights: Any, path: str) -> FeatureIds:
    """The ids of a feature as int64, with one batch dimension.

    Args:
      value: integer ids: a Tensor whose last dimension, if it has two or more,
        is 1; a SparseTensor of rank 2 or above; or a RaggedTensor of rank 2.
      weights: None, or floats of the type and structure of `value`.
      path: what errors call the feature.

    Raises:
      tfembed.errors.ArgumentError: weights that do not fit.
      tfembed.errors.DtypeError: ids that are not integers, or weights that are
        not numbers.
      tfembed.errors.UnsupportedError: string ids.
    """
    _check_ids(value.dtype, path)
    if weights is not None:
        weights = _checked_weights(value, weights, path)
    if isinstance(value, tf.SparseTensor):
        value = value.with_values(tf.cast(value.values, tf.int64))
        return feature_ids(_flat(value), weights, name=path)
    value = tf.cast(value, tf.int64)
    if isinstance(value, tf.Tensor):
        value = tf.reshape(value, [-1])
    return feature_ids(value, weights, name=path)


def _flat(value: tf.SparseTensor) -> tf.SparseTensor:
    """All dimensions but the last as one."""
    if value.shape.rank == 2:
        return value
    return tf.sparse.reshape(value, tf.stack([-1, value.dense_shape[-1]]))


def _check_ids(dtype: tf.DType, path: str) -> None:
    if dtype == tf.string:
        raise errors.UnsupportedError(
            f"Input {path} has string ids, which are not in this release. Hash "
            "them, for example with tf.strings.to_hash_bucket_strong."
        )
    if not dtype.is_integer:
        raise errors.DtypeError(
            f"The ids of input {path} must be integers; got {dtype.name}."
        )


def _checked_weights(value: Any, weights: Any, path: str) -> Any:
    if isinstance(value, tf.Tensor):
        raise errors.ArgumentError(
            f"Weight specified for dense input {path}, which is not allowed. "
            "Weight will always be 1 in this case."
        )
    kind = type(value)
    if not isinstance(weights, kind):
        raise errors.ArgumentError(
            f"Weight for {path} is type {type(weights)} which does not match "
            f"type input which is {kind.__name__}."
        )
    if not (weights.dtype.is_floating or weights.dtype.is_integer):
        raise errors.DtypeError(
            f"The weights of input {path} must be floats; got "
            f"{weights.dtype.name}."
        )
    if kind is tf.RaggedTensor:
        return tf.cast(weights, tf.float32)
    return weights.with_values(tf.cast(weights.values, tf.float32))
