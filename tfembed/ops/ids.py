"""Conversion of the ids of lookups and gradients for the ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed.errors import DtypeError
from tfembed.ops import library

# Parts begin at multiples of this many int64: TensorFlow's alignment, 64 bytes.
ALIGNED = 8


def as_keys(keys: tf.Tensor, what: str) -> tf.Tensor:
    """Returns `keys` as an int64 or string tensor; casts int32.

    Raises:
      DtypeError: another dtype; the text names the keys by `what`.
    """
    keys = tf.convert_to_tensor(keys)
    if keys.dtype == tf.int32:
        return tf.cast(keys, tf.int64)
    if keys.dtype not in (tf.int64, tf.string):
        raise DtypeError(
            f"The ids of {what} must be int64, int32 or string; got "
            f"{keys.dtype.name}."
        )
    return keys


def wide_ids(ids: Any) -> Any:
    """Casts integers to int64, as the ops take them; strings stay strings.

    Args:
      ids: a tensor or composite tensor of integers or strings.
    """
    return ids if ids.dtype == tf.string else tf.cast(ids, tf.int64)


def id_dtypes(
    num_tables: int, table_ids: Sequence[int], ids: Sequence[tf.Tensor]
) -> list[tf.DType]:
    """Returns each table's id dtype: int64, or string if a feature's ids are.

    Args:
      num_tables: the number of tables.
      table_ids: per feature, its table's index.
      ids: per feature, its ids.
    """
    dtypes = [tf.int64] * num_tables
    for table, keys in zip(table_ids, ids, strict=True):
        dtypes[table] = keys.dtype
    return dtypes


def split_aligned(
    values: tf.Tensor, sizes: tf.Tensor, num: int
) -> list[tf.Tensor]:
    """Splits `values` into parts, usually as views without a copy.

    Args:
      values: int64 [n]. Part i begins at the sum of the sizes before it, each
        of them rounded up to a multiple of `ALIGNED`.
      sizes: int64 [num].
      num: the number of parts.

    Returns:
      The parts, int64 [sizes[i]].

    Raises:
      tf.errors.InvalidArgumentError: a negative size, or parts beyond the
        values.
    """
    return library.load().tfembed_split_aligned(values, sizes, N=num)
