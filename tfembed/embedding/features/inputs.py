"""A batch's input, as users give it, made ready for the grouped ops."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.config.custom_combiner import is_custom
from tfembed.embedding.features.output_shapes import OutputShapes
from tfembed.embedding.features.step_format import StepFormat, format_of
from tfembed.ops import FeatureIds, feature_ids
from tfembed.ops.weight_places import at_places_of

__all__ = [
    "BatchInput",
    "check_combines",
    "check_ids",
    "checked_weights",
    "read_batch",
    "read_input",
]


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
      tfembed.errors.DtypeError: ids that are not of the table's dtype, or weights
        that are no numbers.
    """
    features, paths = shapes.features, shapes.paths
    shapes = shapes.with_values(values)
    ids, formats = [], []
    for i, (value, weight) in enumerate(zip(values, weights, strict=True)):
        one, checked = format_of(
            features[i],
            read_input(value, weight, paths[i], features[i].table),
            path=paths[i],
            input_shape=value.shape,
            output_shape=shapes.shapes[i],
        )
        if not one.sequence_length:
            check_combines(features[i], weight, paths[i])
        formats.append(one)
        ids.append(checked)
    return BatchInput(ids, formats, shapes)


def check_combines(feature: Any, weights: Any, path: str) -> None:
    """Raises where a feature's ids are combined, and cannot be with weights."""
    if weights is not None and is_custom(feature.table.combiner):
        raise errors.ArgumentError(
            f"Weight specified for {path}, but its table "
            f"{feature.table.name!r} has a CustomCombiner, which takes none. "
            "Leave it out, or combine by sum, mean or sqrtn."
        )


def read_input(value: Any, weights: Any, path: str, table: Any) -> FeatureIds:
    """The ids of a feature as int64 or strings, with one batch dimension.

    Args:
      value: integer ids, or strings where `table` has them: a Tensor whose last
        dimension, if it has two or more, is 1; a SparseTensor of rank 2 or
        above; or a RaggedTensor of rank 2.
      weights: None, or floats of the type and structure of `value`.
      path: what errors call the feature.
      table: its TableConfig.

    Raises:
      tfembed.errors.ArgumentError: weights that do not fit.
      tfembed.errors.DtypeError: ids that are not of the table's dtype, or weights
        that are not numbers.
    """
    check_ids(value.dtype, path, table)
    if weights is not None:
        weights = checked_weights(value, weights, path)
    if isinstance(value, tf.SparseTensor):
        value = value.with_values(_wide(value.values))
        return feature_ids(_flat(value), weights, name=path)
    value = _wide(value)
    if isinstance(value, tf.Tensor):
        value = tf.reshape(value, [-1])
    return feature_ids(value, weights, name=path)


def _flat(value: tf.SparseTensor) -> tf.SparseTensor:
    """All dimensions but the last as one.

    An index outside of one of them becomes that of a sample before the first,
    which engines refuse. (tf.sparse.reshape takes it to another sample, and XLA
    does not compile that.)
    """
    if value.shape.rank == 2:
        return value
    sizes = tf.unstack(value.dense_shape, value.shape.rank)
    places = tf.unstack(value.indices, value.shape.rank, axis=1)
    sample, is_inside = tf.zeros_like(places[-1]), True
    for size, place in zip(sizes[:-1], places[:-1], strict=True):
        is_inside &= (place >= 0) & (place < size)
        sample = sample * size + place
    sample = tf.where(is_inside, sample, tf.constant(-1, tf.int64))
    samples = math.prod(sizes[:-1], start=tf.constant(1, tf.int64))
    return tf.SparseTensor(
        tf.stack([sample, places[-1]], 1),
        value.values,
        tf.stack([samples, sizes[-1]]),
    )


def _wide(ids: Any) -> Any:
    return ids if ids.dtype == tf.string else tf.cast(ids, tf.int64)


def check_ids(dtype: tf.DType, path: str, table: Any) -> None:
    """Raises DtypeError where a feature's ids are not those of its table."""
    wanted = getattr(table, "key_dtype", tf.int64)
    if dtype == tf.string and wanted != tf.string:
        raise errors.DtypeError(
            f"The ids of input {path} must be integers; got string. A table "
            "with vocabulary_size=None and key_dtype=tf.string takes strings; "
            "for others hash them, for example with "
            "tf.strings.to_hash_bucket_strong."
        )
    if wanted == tf.string and dtype != tf.string:
        raise errors.DtypeError(
            f"The ids of input {path} must be strings, the key_dtype of its "
            f"table {table.name!r}; got {dtype.name}."
        )
    if dtype != tf.string and not dtype.is_integer:
        raise errors.DtypeError(
            f"The ids of input {path} must be integers; got {dtype.name}. "
            "Cast them; in a Keras model, give keras.Input(dtype='int64')."
        )


def checked_weights(value: Any, weights: Any, path: str) -> Any:
    """The weights of `value` as float32; raises where they do not fit.

    Where they stand is told when it runs: `at_places_of`.
    """
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
    weights = at_places_of(value, weights, path)
    return weights.with_values(tf.cast(weights.values, tf.float32))
