"""A replica's batch in parts, for the TPU cores that it is spread over (SPMD)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors

__all__ = ["split_over_cores"]


def split_over_cores(
    values: Sequence[Any], paths: Sequence[str], cores: int
) -> list[list[Any]]:
    """Per core its part of each value: as many samples, in their order.

    Args:
      values: Tensors [B, ...], SparseTensors and None.
      paths: what errors call them.
      cores: how many.

    Raises:
      tfembed.errors.ArgumentError: a RaggedTensor, or a batch that is not a
        multiple of `cores`.
    """
    parts = [
        _split(value, path, cores)
        for value, path in zip(values, paths, strict=True)
    ]
    return [list(of_core) for of_core in zip(*parts, strict=True)]


def _split(value: Any, path: str, cores: int) -> list[Any]:
    if value is None:
        return [None] * cores
    if not isinstance(value, (tf.Tensor, tf.SparseTensor)):
        raise errors.ArgumentError(
            "SPMD does not support raggedTensor yet: a replica of this "
            f"TPUStrategy has {cores} cores, and input {path} is of type "
            f"{type(value)}. Give a Tensor or a SparseTensor."
        )
    samples = value.shape[0] if value.shape.rank else None
    if samples is None or samples % cores:
        raise errors.ArgumentError(
            f"Input {path} has {samples} samples; the {cores} cores of a replica "
            "need a number that they divide, known when it is traced."
        )
    if isinstance(value, tf.Tensor):
        return tf.split(value, cores)
    # The parts' own shapes are not known before they run.
    shape = tf.concat(
        [[tf.constant(samples // cores, tf.int64)], value.dense_shape[1:]], 0
    )
    return [
        tf.SparseTensor(part.indices, part.values, shape)
        for part in tf.sparse.split(value, cores, axis=0)
    ]
