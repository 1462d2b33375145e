"""The tensors of an input, and the specification of all inputs like it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

__all__ = ["InputSpecs"]


class InputSpecs:
    """Inputs as users have them, taken apart for a call of a function.

    Inputs of the same `key` fit the same `specs`: they differ in their numbers
    of ids, and in how many the longest sample has.

    Attributes:
      key: hashable; None where an input is not of a kind that is known here.
      tensors: those of all inputs, in the order of tf.nest.flatten with
        expand_composites.

    Args:
      values: eager Tensors, SparseTensors, RaggedTensors or None.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        self.tensors: list[tf.Tensor] = []
        keys = [self._take(value) for value in values]
        self.key = None if False in keys else tuple(keys)

    def specs(self) -> list[Any]:
        """One for each input that is not None."""
        return [_spec(value) for value in self._values if value is not None]

    def _take(self, value: Any) -> Any:
        """Adds the tensors of an input; its part of the key, or False."""
        if value is None:
            return None
        # Numbers and tuples: TensorFlow's own shapes and specs compare slowly.
        if isinstance(value, tf.SparseTensor):
            self.tensors += [value.indices, value.values, value.dense_shape]
            samples = tuple(value.shape.as_list()[:-1])
            return "sparse", value.dtype.as_datatype_enum, samples
        if isinstance(value, tf.RaggedTensor):
            if value.ragged_rank != 1 or value.flat_values.shape.rank != 1:
                return False
            splits = value.row_splits
            self.tensors += [value.flat_values, splits]
            dtypes = value.dtype.as_datatype_enum, splits.dtype.as_datatype_enum
            return "ragged", *dtypes, splits.shape[0]
        if isinstance(value, tf.Tensor):
            self.tensors.append(value)
            shape = tuple(value.shape.as_list())
            return "dense", value.dtype.as_datatype_enum, shape
        return False


def _spec(value: Any) -> Any:
    if isinstance(value, tf.SparseTensor):
        return tf.SparseTensorSpec([*value.shape[:-1], None], value.dtype)
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensorSpec(
            [value.shape[0], None],
            value.dtype,
            ragged_rank=1,
            row_splits_dtype=value.row_splits.dtype,
        )
    return tf.TensorSpec(value.shape, value.dtype)
