"""Which dtypes of keys and values go together in a table."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors

__all__ = ["check_trained", "table_dtypes"]

_TRAINED = ("float32", "float16", "bfloat16")
_VALUES_OF_KEYS = {
    "int64": (
        "float32",
        "float16",
        "bfloat16",
        "int32",
        "int8",
        "int64",
        "float64",
        "string",
    ),
    "int32": ("float32", "int32", "float64", "bfloat16"),
    "string": (
        "float32",
        "float16",
        "bfloat16",
        "int32",
        "int8",
        "int64",
        "float64",
        "bool",
    ),
}


def table_dtypes(key_dtype: Any, value_dtype: Any) -> tuple[tf.DType, tf.DType]:
    """The dtypes of a table's keys and values.

    Args:
      key_dtype, value_dtype: what `tf.as_dtype` takes.

    Raises:
      tfembed.errors.DtypeError: a pair that no table has; the text lists those
        that there are.
    """
    try:
        keys, values = tf.as_dtype(key_dtype), tf.as_dtype(value_dtype)
    except TypeError:
        raise _no_such_pair(repr(key_dtype), repr(value_dtype)) from None
    if values.name not in _VALUES_OF_KEYS.get(keys.name, ()):
        raise _no_such_pair(keys.name, values.name)
    return keys, values


def check_trained(value_dtype: tf.DType, name: str) -> None:
    """Raises DtypeError where no optimizer moves rows of `value_dtype`.

    Args:
      value_dtype: of the rows.
      name: the table's.
    """
    if value_dtype.name not in _TRAINED:
        raise errors.DtypeError(
            f"Table '{name}' has rows of {value_dtype.name}; only those of "
            f"{', '.join(_TRAINED)} can be trained. Read and upsert them instead."
        )


def _no_such_pair(keys: str, values: str) -> errors.DtypeError:
    valid = ", ".join(
        f"{key}-{value}"
        for key, those in _VALUES_OF_KEYS.items()
        for value in those
    )
    return errors.DtypeError(
        f"key_dtype-value_dtype {keys}-{values} is not supported; valid "
        f"combinations: {valid}."
    )
