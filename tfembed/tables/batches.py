"""Keys and values of a batch, as tensors of a table's dtypes.

A tensor must be of the dtype already. Python's and NumPy's numbers are
converted where they are of the same nature: integers that fit to integers,
integers and floats to floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors

__all__ = ["key_tensor", "value_tensor"]

Error = type[errors.TfembedError]


def key_tensor(
    keys: Any,
    dtype: tf.DType,
    table: str,
    error: Error = errors.DtypeError,
) -> tf.Tensor:
    """`keys` as a tensor of any shape.

    Args:
      keys: a tensor, a tf.Variable, or numbers; lists may hold tensors.
      dtype: of the table's keys.
      table: the table's name, for errors.
      error: what to raise.

    Raises:
      error: keys of another dtype, or that do not fit into it.
    """
    return _tensor(keys, dtype, f"Keys of table '{table}'", error)


def value_tensor(
    values: Any,
    dtype: tf.DType,
    table: str,
    error: Error = errors.DtypeError,
) -> tf.Tensor:
    """`values` as a tensor of any shape; as `key_tensor`."""
    return _tensor(values, dtype, f"Values of table '{table}'", error)


def _tensor(value: Any, dtype: tf.DType, what: str, error: Error) -> tf.Tensor:
    if isinstance(value, tf.Tensor) and value.dtype == dtype:
        return value  # Each step of an eager call of a narrow batch shows.
    if not _is_tensor(value) and any(map(_is_tensor, tf.nest.flatten(value))):
        value = tf.convert_to_tensor(value)
    if _is_tensor(value):
        if value.dtype != dtype:
            raise error(
                f"{what} must be {dtype.name}; got a tensor of dtype "
                f"{tf.as_dtype(value.dtype).name}. Cast it first."
            )
        return tf.convert_to_tensor(value)
    # NumPy's own strings would lose zero bytes at their ends.
    array = np.asarray(value, object if dtype == tf.string else None)
    if array.size and not _fits(array, dtype):
        raise error(
            f"{what} must be {_nature(dtype)} of {dtype.name}; got "
            f"{array.dtype}."
        )
    return tf.constant(array.astype(dtype.as_numpy_dtype), dtype)


def _is_tensor(value: Any) -> bool:
    return tf.is_tensor(value) or isinstance(value, tf.Variable)


def _fits(array: np.ndarray[Any, Any], dtype: tf.DType) -> bool:
    if dtype == tf.string:
        return all(isinstance(x, (str, bytes)) for x in array.ravel())
    if array.dtype == dtype.as_numpy_dtype:
        return True
    if dtype.is_floating:
        return array.dtype.kind in "iuf"
    if not dtype.is_integer or array.dtype.kind not in "iu":
        return False
    if array.dtype == np.uint64:
        return False
    return dtype.min <= int(array.min()) and int(array.max()) <= dtype.max


def _nature(dtype: tf.DType) -> str:
    if dtype.is_floating:
        return "numbers"
    if dtype == tf.string:
        return "strings"
    return "integers" if dtype.is_integer else "booleans"
