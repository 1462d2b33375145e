"""The dense shape of a table's gradient, which no tensor has.

A gradient of a table is tf.IndexedSlices by key. TensorFlow and Keras make it
dense where a function knows dense tensors alone: of a table without a fixed
number of rows that is no number, or a wrong one. So the slices' `dense_shape` is
a `KeyedShape`. Functions that pass slices on (clipping, tf.function, all-reduce)
keep it; those that would make them dense raise.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Sequence
from typing import Any, cast

import tensorflow as tf

from tfembed import errors
from tfembed.ops import private
from tfembed.ops.session_graph import unless_fetched

__all__ = ["KeyedShape", "keyed_shape", "keyed_slices"]

_TEXT = (
    "The gradient of a table has no dense form: it is a row for each key, and the"
    " table has no fixed number of rows. Compute with its `values`, a row for "
    "each key in `indices`: `tf.reduce_all(tf.math.is_finite(gradient.values))`. "
    "Add gradients by concatenating both. Its jacobian is that of the rows that "
    "were looked up: `tape.jacobian(target, rows)`. A loop of your own that "
    "scales its loss gives the optimizer a `loss_scale_factor`, in place of a "
    "LossScaleOptimizer."
)


@private.register_dispatchable
class KeyedShape:
    """The shape [-1, dim] of slices that cannot become dense.

    Args:
      dim: the width of a row; -1 where it is unknown.
    """

    dtype = tf.int64
    shape = tf.TensorShape([2])
    op = types.SimpleNamespace(type="Const")  # `constant_value_as_shape`.

    def __init__(self, dim: int) -> None:
        self._dim = dim

    def get_shape(self) -> tf.TensorShape:
        """Returns [2]."""
        return self.shape

    def __iter__(self) -> Iterator[int]:
        return iter((-1, self._dim))

    def __getitem__(self, index: Any) -> Any:
        raise errors.DtypeError(_TEXT)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Raises DtypeError: nothing is computed with this shape."""
        raise errors.DtypeError(_TEXT)

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        """Converts to [-1, dim], for a function that returns the slices."""
        return tf.constant([-1, self._dim], dtype or self.dtype, name=name)

    def __repr__(self) -> str:
        return f"<no dense shape: rows by key, width {self._dim}>"


_shape_of_width = functools.cache(KeyedShape)


def keyed_shape(dim: int | None) -> KeyedShape | None:
    """Returns the shape of a gradient of rows of width `dim`.

    It is None in graphs of TensorFlow 1: sessions fetch tensors alone.
    """
    shape = _shape_of_width(-1 if dim is None else dim)
    return cast("KeyedShape | None", unless_fetched(shape))


def keyed_slices(gradient: Any, dim: int) -> Any:
    """Returns slices with a `KeyedShape`, in place of a branch's tensor.

    Args:
      gradient: the gradient of a table; all but tf.IndexedSlices is returned
        unchanged.
      dim: width of the table's rows.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.IndexedSlices(gradient.values, gradient.indices, keyed_shape(dim))


class _KeyedSlicesSpec(tf.IndexedSlicesSpec):
    """The spec of slices with a `KeyedShape`: their values and indices.

    Slices of another function, branch or replica get that shape again, which
    is no tensor there.
    """

    __slots__ = ()

    def is_subtype_of(self, other: Any) -> bool:
        """Says whether the slices may be given where `other` is asked for."""
        if type(other) is not tf.IndexedSlicesSpec:
            return bool(super().is_subtype_of(other))
        shape, dtype, indices_dtype, _, indices_shape = self._serialize()
        with_tensor = tf.IndexedSlicesSpec(
            shape, dtype, indices_dtype, KeyedShape.dtype, indices_shape
        )
        return bool(with_tensor.is_subtype_of(other))

    def _to_components(self, value: Any) -> tuple[Any, ...]:
        return value.values, value.indices

    def _from_components(self, tensor_list: Sequence[Any]) -> Any:
        dim = self._shape[-1] if self._shape.rank else None
        return tf.IndexedSlices(*tensor_list, keyed_shape(dim))


private.spec_slices_with(KeyedShape, _KeyedSlicesSpec)


# TensorFlow itself converts by other functions than these, which programs and
# Keras call.


@tf.experimental.dispatch_for_api(tf.fill, {"dims": KeyedShape})
def _fill(dims: Any, value: Any, name: Any = None, layout: Any = None) -> Any:
    raise errors.DtypeError(_TEXT)


@tf.experimental.dispatch_for_api(tf.convert_to_tensor, {"value": KeyedShape})
def _convert_to_tensor(
    value: Any, dtype: Any = None, dtype_hint: Any = None, name: Any = None
) -> Any:
    raise errors.DtypeError(_TEXT)


@tf.experimental.dispatch_for_api(tf.reduce_prod, {"input_tensor": KeyedShape})
def _reduce_prod(
    input_tensor: Any, axis: Any = None, keepdims: Any = False, name: Any = None
) -> Any:
    raise errors.DtypeError(_TEXT)
