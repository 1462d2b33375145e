"""Conversion of NumPy arrays, lists and Python values of ids to tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors

__all__ = ["TENSORS", "as_ids", "as_weights", "with_tensors"]

# Types that need neither `as_ids` nor `as_weights`.
TENSORS = (
    tf.Tensor,
    tf.SparseTensor,
    tf.RaggedTensor,
    tf.distribute.DistributedValues,
    type(None),
)

# (value, feature's table, path) -> a tensor.
Convert = Callable[[Any, Any, str], Any]


def with_tensors(
    features: Any, values: Any, convert: Convert, path: str = ""
) -> Any:
    """Replaces values of Python and NumPy in a structure by tensors.

    A list in the place of a FeatureConfig has ids; other lists are structure.
    If the structure differs from that of the features it is returned unchanged:
    the caller raises the error.

    Args:
      features: a FeatureConfig or a structure of them.
      values: a structure like `features`, or a part of it.
      convert: `as_ids` or `as_weights`.
      path: the path of `features` in the whole structure.
    """
    if hasattr(features, "max_sequence_length"):
        return convert(values, features.table, path or features.name or "")
    if isinstance(values, Mapping):
        return {
            key: _child(features, key, value, convert, path)
            for key, value in values.items()
        }
    is_list = isinstance(features, (list, tuple))
    if is_list and isinstance(values, (list, tuple)):
        parts = [
            _child(features, i, value, convert, path)
            for i, value in enumerate(values)
        ]
        if hasattr(values, "_fields"):  # A namedtuple.
            return type(values)(*parts)
        return type(values)(parts)
    return values


def _child(
    features: Any, key: Any, value: Any, convert: Convert, path: str
) -> Any:
    try:
        of_key = features[key]
    except (KeyError, IndexError, TypeError):
        return value
    return with_tensors(
        of_key, value, convert, f"{path}/{key}" if path else str(key)
    )


def as_ids(value: Any, table: Any, path: str) -> Any:
    """Converts ids to a tensor of their table's dtype, unless they are one.

    Args:
      value: an array, or a list of one id per sample, becomes a Tensor; a list
        of lists becomes a RaggedTensor. Other values are returned unchanged.
      table: the TableConfig.
      path: the feature's name in errors.

    Raises:
      tfembed.errors.DtypeError: ids of another dtype than the table's, or
        integers that do not fit into int64.
    """
    wanted = getattr(table, "key_dtype", tf.int64)
    what = "strings" if wanted == tf.string else "integers"

    def make(ids: Any) -> tf.Tensor:
        array = np.asarray(ids, object if wanted == tf.string else None)
        if not array.size:
            return tf.constant(array.astype(wanted.as_numpy_dtype), wanted)
        if array.dtype == np.uint64:
            raise OverflowError("uint64 has numbers that int64 has not")
        return tf.constant(array, _narrow(array, wanted))

    return _converted(value, make, f"The ids of input {path}", what)


def as_weights(value: Any, table: Any, path: str) -> Any:
    """Converts weights to a float32 tensor, as `as_ids` converts ids."""
    del table

    def make(weights: Any) -> tf.Tensor:
        return tf.constant(np.asarray(weights), tf.float32)

    return _converted(value, make, f"The weights of input {path}", "numbers")


def _narrow(array: np.ndarray[Any, Any], wanted: tf.DType) -> Any:
    """Returns the dtype for a tensor of ids; None: as TensorFlow chooses."""
    if wanted == tf.string:
        is_text = all(isinstance(x, (str, bytes)) for x in array.ravel())
        return tf.string if is_text else None
    return tf.int64 if array.dtype.kind in "iu" else None


def _converted(
    value: Any, make: Callable[[Any], tf.Tensor], what: str, wanted: str
) -> Any:
    if isinstance(value, TENSORS):
        return value
    if isinstance(value, tf.Variable):
        return value.read_value()
    is_list = isinstance(value, (list, tuple))
    # Objects that convert to an array, as a pandas Series. Other values, as
    # lists of tensors, are left to the caller's checks.
    if not (_is_of_numbers(value) if is_list else hasattr(value, "__array__")):
        return value
    try:
        samples = value if is_list else np.asarray(value)
        if not is_list and samples.dtype == object:
            samples = samples.tolist()
        if isinstance(samples, (list, tuple)) and any(map(_is_list, samples)):
            return _ragged(samples, make)
        return make(samples)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.DtypeError(
            f"{what} must be {wanted}, one for each sample or a list of them "
            f"for each sample; got {_short(value)}: {error}"
        ) from None


def _is_of_numbers(values: Sequence[Any]) -> bool:
    """Says whether all items of a list are numbers, strings or lists."""
    return all(
        isinstance(one, (int, float, str, bytes, np.generic)) or _is_list(one)
        for one in values
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (
        isinstance(value, np.ndarray) and value.ndim > 0
    )


def _ragged(
    samples: Sequence[Any], make: Callable[[Any], tf.Tensor]
) -> tf.RaggedTensor:
    lists = [np.asarray(one).tolist() for one in samples]
    if not all(isinstance(one, list) for one in lists):
        raise ValueError("some samples are lists and some are not")
    return tf.RaggedTensor.from_row_lengths(
        make([one for of_sample in lists for one in of_sample]),
        [len(one) for one in lists],
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
