"""input_fns over arrays in memory: `numpy_input_fn`, `pandas_input_fn`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed.errors import ArgumentError, DtypeError

__all__ = ["numpy_input_fn", "pandas_input_fn"]

_Columns = dict[str, Any]


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Any]:
    """Returns an input_fn that yields batches of NumPy arrays.

    Batches may span two epochs; only the last one may be smaller.

    Args:
      x: An array of features, or a dict of arrays.
      y: An array of labels, a dict of arrays, or None.
      batch_size: The number of examples of a batch.
      num_epochs: The number of passes over the arrays; None: endless.
      shuffle: Whether to shuffle all examples in each epoch. Required.
      queue_capacity: Ignored: there is no queue.
      num_threads: Ignored: one thread gathers a batch.

    Raises:
      ValueError: `shuffle` is not given; or, from the input_fn, arrays are
        empty, differ in length, or share a name.
      TypeError: From the input_fn: `x` is neither an array nor a dict.
    """
    del queue_capacity, num_threads
    _check_shuffle(shuffle)

    def input_fn() -> Any:
        features = _features(x)
        labels = _labels(y, features)
        _check_lengths(features, labels)
        columns = [*features.values(), *labels.values()]
        batch = _batches(
            columns, batch_size, num_epochs=num_epochs, shuffle=bool(shuffle)
        )
        parts = dict(zip(features, batch, strict=False))
        given = parts if isinstance(x, dict) else batch[0]
        if y is None:
            return given
        rest = dict(zip(labels, batch[len(features) :], strict=True))
        return given, rest if isinstance(y, dict) else batch[-1]

    return input_fn


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int | None = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Any]:
    """Returns an input_fn that yields batches of a pandas.DataFrame.

    Args:
      x: A DataFrame of features, with one feature per column.
      y: A Series or DataFrame of labels with the same index, or None.
      batch_size: The number of examples of a batch.
      num_epochs: The number of passes over the rows; None: endless.
      shuffle: Whether to shuffle all rows in each epoch. Required.
      queue_capacity: Ignored: there is no queue.
      num_threads: Ignored: one thread gathers a batch.
      target_column: The name of the labels, which no column of `x` may have.

    Raises:
      ValueError: `shuffle` is not given, the indices of `x` and `y` differ, or
        `x` has a column named `target_column`.
      TypeError: `x` is not a DataFrame, or `target_column` is not a string.
    """
    del queue_capacity, num_threads
    _check_shuffle(shuffle)
    if not isinstance(target_column, str):
        raise DtypeError(
            f"target_column must be a string type; got {target_column!r}."
        )
    if not (hasattr(x, "columns") and hasattr(x, "index")):
        raise DtypeError(
            "x must be a pandas.DataFrame; got "
            f"{type(x).__name__}. For arrays there is numpy_input_fn."
        )
    columns = {name: x[name].to_numpy(copy=True) for name in x.columns}
    labels: _Columns = {}
    if y is not None:
        if target_column in x:
            raise ArgumentError(
                f"Cannot use name {target_column} for target column: DataFrame"
                f" already has a column with that name: {x.columns}"
            )
        if not np.array_equal(x.index, y.index):
            raise ArgumentError(
                "Index for x and y are mismatched.\n"
                f"Index for x: {x.index}\nIndex for y: {y.index}\n"
            )
        if hasattr(y, "columns"):
            labels = {name: y[name].to_numpy(copy=True) for name in y.columns}
        else:
            labels = {str(uuid.uuid4()): y.to_numpy(copy=True)}

    def input_fn() -> Any:
        batch = _batches(
            [*columns.values(), *labels.values()],
            batch_size,
            num_epochs=num_epochs,
            shuffle=bool(shuffle),
        )
        features = dict(zip(columns, batch, strict=False))
        if y is None:
            return features
        targets = dict(zip(labels, batch[len(columns) :], strict=True))
        return features, targets if hasattr(y, "columns") else batch[-1]

    return input_fn


def _batches(
    columns: list[Any],
    batch_size: int,
    *,
    num_epochs: int | None,
    shuffle: bool,
) -> list[Any]:
    """Returns the tensors of a batch; each session run has the next batch.

    The graph contains only indices: arrays in it would be saved with it.
    """
    count = len(columns[0])
    arrays = [_plain(column) for column in columns]
    dtypes = [tf.as_dtype(array.dtype) for array in arrays]

    def gather(rows: Any) -> Any:
        batch = tf.numpy_function(
            lambda i: [array[i] for array in arrays],
            [rows],
            dtypes,
            stateful=False,  # The input's position can then be saved.
        )
        for tensor, array in zip(batch, arrays, strict=True):
            tensor.set_shape([rows.shape[0], *array.shape[1:]])
        return tuple(batch)

    rows = tf.data.Dataset.range(count)
    if shuffle:
        rows = rows.shuffle(count)
    rows = rows.repeat(num_epochs)
    rows = rows.batch(batch_size, drop_remainder=num_epochs is None)
    data = rows.map(gather).prefetch(1)
    return list(tf.compat.v1.data.make_one_shot_iterator(data).get_next())


def _plain(column: Any) -> Any:
    """Converts a column to an array with a dtype that TensorFlow has."""
    array = np.asarray(column)
    if array.dtype.kind == "O":
        return array.astype(str).astype(object)
    return array


def _features(x: Any) -> _Columns:
    if isinstance(x, dict):
        if not x:
            raise ArgumentError("x cannot be an empty dict; give arrays.")
        return dict(sorted(x.items()))
    if isinstance(x, np.ndarray):
        if not x.size:
            raise ArgumentError("x cannot be an empty array; give examples.")
        return {"": x}
    raise DtypeError(f"x must be a dict or array; got {type(x).__name__}")


def _labels(y: Any, features: Mapping[str, Any]) -> _Columns:
    if y is None:
        return {}
    if not isinstance(y, dict):
        return {"": y}
    if not y:
        raise ArgumentError("y cannot be empty dict, use None instead.")
    both = sorted(set(y) & set(features))
    if both:
        raise ArgumentError(
            f"{len(both)} duplicate keys are found in both x and y: {both}"
        )
    return dict(sorted(y.items()))


def _check_lengths(features: _Columns, labels: _Columns) -> None:
    lengths = {
        array.shape[0] for array in (*features.values(), *labels.values())
    }
    if len(lengths) > 1:
        shapes = [
            {name: array.shape for name, array in part.items()}
            for part in (features, labels)
        ]
        raise ArgumentError(
            "Length of tensors in x and y is mismatched. All elements in x "
            f"and y must have the same length.\nShapes in x: {shapes[0]}\n"
            f"Shapes in y: {shapes[1]}\n"
        )


def _check_shuffle(shuffle: Any) -> None:
    if not isinstance(shuffle, bool):
        raise ArgumentError(
            "shuffle must be provided and explicitly set as boolean (it is "
            f"recommended to set it as True for training); got {shuffle}"
        )
