"""One feature as tensors of rank 1, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.features.inputs import checked_weights

__all__ = ["feature_of", "parts_of", "shape_of"]


def parts_of(value: Any, weights: Any, path: str) -> tuple[Any, ...]:
    """Kind, ids, rows and weights of one feature, each of rank 1.

    Raises:
      tfembed.errors.ArgumentError, tfembed.errors.DtypeError: as `pack_features`.
    """
    none, nothing = tf.zeros([0], tf.int64), tf.zeros([0], tf.float32)
    if isinstance(value, (tf.SparseTensor, tf.RaggedTensor, tf.Tensor)):
        _check_ids(value.dtype, path)
    if weights is not None:
        weights = checked_weights(value, weights, path).values
    else:
        weights = nothing
    if isinstance(value, tf.SparseTensor):
        rows = tf.concat(
            [value.dense_shape, tf.reshape(value.indices, [-1])], 0
        )
        return "sparse", _wide(value.values), rows, weights
    if isinstance(value, tf.RaggedTensor):
        if value.shape.rank != 2:
            raise errors.ArgumentError(
                "Only rank 2 ragged tensor is supported, found rank "
                f"{value.shape.rank} for input {path}"
            )
        ids = _wide(value.values)
        return "ragged", ids, tf.cast(value.row_splits, tf.int64), weights
    if isinstance(value, tf.Tensor):
        ids = tf.reshape(_wide(value), [-1])
        return "dense", ids, none, weights
    raise errors.ArgumentError(
        f"Input {path} is of unknown type {type(value)}. Please only pass "
        "Tensor, SparseTensor or RaggedTensor."
    )


def _check_ids(dtype: tf.DType, path: str) -> None:
    if not (dtype.is_integer or dtype == tf.string):
        raise errors.DtypeError(
            f"The ids of input {path} must be integers or strings; got "
            f"{dtype.name}."
        )


def _wide(ids: tf.Tensor) -> tf.Tensor:
    return ids if ids.dtype == tf.string else tf.cast(ids, tf.int64)


def shape_of(value: Any, path: str) -> tf.TensorShape:
    """What is the same in every batch: not how many ids a sample has.

    Raises:
      tfembed.errors.ArgumentError: a Tensor with two unknown dimensions.
    """
    shape = value.shape
    if not isinstance(value, tf.Tensor):
        return shape[:-1].concatenate([None])
    if shape.rank is None or list(shape).count(None) > 1:
        raise errors.ArgumentError(
            f"Input {path or 'the only feature'} has shape {shape}; to be "
            "packed, a Tensor may have one unknown dimension. Batch with "
            "drop_remainder=True, or set its shape."
        )
    return shape


def feature_of(
    kind: str, ids: tf.Tensor, rows: tf.Tensor, shape: tf.TensorShape
) -> Any:
    """The feature of such parts."""
    return _FEATURES[kind](ids, rows, shape)


def _dense(ids: tf.Tensor, rows: tf.Tensor, shape: tf.TensorShape) -> Any:
    del rows
    return tf.reshape(ids, _sizes_of(shape))


def _ragged(ids: tf.Tensor, rows: tf.Tensor, shape: tf.TensorShape) -> Any:
    if shape[0] is not None:
        rows = tf.ensure_shape(rows, [shape[0] + 1])
    return tf.RaggedTensor.from_row_splits(ids, rows, validate=False)


def _sparse(ids: tf.Tensor, rows: tf.Tensor, shape: tf.TensorShape) -> Any:
    # Dimensions that are known stay known in a function.
    dense_shape = tf.stack(
        [
            rows[i] if size is None else tf.constant(size, tf.int64)
            for i, size in enumerate(shape)
        ]
    )
    indices = tf.reshape(rows[shape.rank :], [-1, shape.rank])
    return tf.SparseTensor(indices, ids, dense_shape)


def _sizes_of(shape: tf.TensorShape) -> Sequence[int]:
    return [-1 if size is None else size for size in shape]


_FEATURES = {"dense": _dense, "ragged": _ragged, "sparse": _sparse}
