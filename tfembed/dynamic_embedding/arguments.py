"""What a variable's caller may give: dtypes, devices, keys, values."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors

__all__ = [
    "check_dtypes",
    "check_later_features",
    "check_shape",
    "check_value_shape",
    "device_list",
    "id_tensor",
    "integer",
    "key_tensor",
    "value_tensor",
]

_DTYPES = (("int64", "float32"),)


def check_dtypes(key_dtype: Any, value_dtype: Any) -> None:
    """Raises DtypeError for a pair of dtypes that no table has."""
    given = (tf.as_dtype(key_dtype).name, tf.as_dtype(value_dtype).name)
    if given not in _DTYPES:
        valid = ", ".join(f"{k}-{v}" for k, v in _DTYPES)
        raise errors.DtypeError(
            f"key_dtype-value_dtype {given[0]}-{given[1]} is not supported in "
            f"this release; valid combinations: {valid}."
        )


def check_later_features(kv_creator: Any, restrict_policy: Any) -> None:
    """Raises for what a variable does not take yet."""
    if restrict_policy is not None and not inspect.isclass(restrict_policy):
        raise errors.DtypeError(
            "`restrict_policy` must be a class of restrict policies or None; "
            f"got {restrict_policy!r}."
        )
    for name, value in (
        ("restrict_policy", restrict_policy),
        ("kv_creator", kv_creator),
    ):
        if value is not None:
            raise errors.UnsupportedError(
                f"`{name}` is not in this release; leave it None. Rows are "
                "kept in host memory and removed by `remove` and `clear`."
            )


def device_list(devices: str | Sequence[str] | None) -> list[str]:
    """The device of each shard; one CPU where none is given."""
    if devices is None:
        return ["/CPU:0"]
    return [devices] if isinstance(devices, str) else list(devices)


def integer(value: Any, argument: str, *, least: int) -> int:
    """`value` as an int that is at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise errors.ArgumentError(
            f"`{argument}` must be an integer of at least {least}; got {value!r}."
        )
    return number


def _is_tensor(value: Any) -> bool:
    return tf.is_tensor(value) or isinstance(value, tf.Variable)


def key_tensor(
    keys: Any,
    table: str,
    error: type[errors.TfembedError] = errors.ArgumentError,
) -> tf.Tensor:
    """`keys` as an int64 tensor of any shape.

    Tensors, and lists that hold some, must be int64 already; Python and NumPy
    integers are converted.

    Raises:
      error: anything else.
    """
    if not _is_tensor(keys) and any(map(_is_tensor, tf.nest.flatten(keys))):
        keys = tf.convert_to_tensor(keys)
    if _is_tensor(keys):
        if keys.dtype != tf.int64:
            raise error(
                f"Keys of '{table}' must be int64; got a tensor of dtype "
                f"{tf.as_dtype(keys.dtype).name}. Cast it first."
            )
        return tf.convert_to_tensor(keys)
    array = np.asarray(keys)
    if array.size and (
        array.dtype.kind not in "iu" or array.dtype == np.uint64
    ):
        raise error(
            f"Keys of '{table}' must be integers that fit int64; got {array.dtype}."
        )
    return tf.constant(array.astype(np.int64))


def id_tensor(ids: Any, table: str) -> tf.Tensor:
    """`key_tensor` for lookups, which raise DtypeError (a TypeError)."""
    return key_tensor(ids, table, errors.DtypeError)


def value_tensor(values: Any, table: str) -> tf.Tensor:
    """`values` as a float32 tensor.

    Raises:
      tfembed.errors.ArgumentError: a tensor of another dtype, or no numbers.
    """
    if _is_tensor(values):
        if values.dtype != tf.float32:
            raise errors.ArgumentError(
                f"Values of '{table}' must be float32; got a tensor of dtype "
                f"{tf.as_dtype(values.dtype).name}. Cast it first."
            )
        return tf.convert_to_tensor(values)
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iuf":
        raise errors.ArgumentError(
            f"Values of '{table}' must be numbers; got {array.dtype}."
        )
    return tf.constant(array.astype(np.float32))


def check_value_shape(keys: tf.Tensor, values: tf.Tensor, dim: int) -> None:
    """Raises where it is known that `values` is not keys.shape + [dim].

    Raises:
      tf.errors.InvalidArgumentError: as the op does for shapes that are known
        only when it runs.
    """
    check_shape("value", values, keys.shape.concatenate([dim]))


def check_shape(what: str, tensor: tf.Tensor, expected: tf.TensorShape) -> None:
    """Raises InvalidArgumentError where a shape is known to be another one."""
    if not tensor.shape.is_compatible_with(expected):
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            f"Expected shape {_text(expected)} for {what}, got "
            f"{_text(tensor.shape)}.",
        )


def _text(shape: tf.TensorShape) -> str:
    if shape.rank is None:
        return "<unknown>"
    sizes = ("?" if size is None else str(size) for size in shape.as_list())
    return f"[{','.join(sizes)}]"
