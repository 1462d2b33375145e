"""Columns: descriptions of what is requested, and arrays of it from Arrow's."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfembed import checks
from tfembed.errors import DataError

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A description of a column.

    Attributes:
      dtype: "int32", "int64", "float32", "float64" or "string".
      separator: the separator of several values in a field; None: one value.
      blank: the value of an empty field; None: an empty field is a fault.
      finite: whether only finite numbers are allowed.
      among: the only values that are allowed; empty: all.
    """

    dtype: str
    separator: str | None = None
    blank: float | None = 0
    finite: bool = False
    among: tuple[float, ...] = ()

    def spec(self) -> tf.TypeSpec:
        """Returns the spec of the column in a batch."""
        dtype = tf.as_dtype(self.dtype)
        if self.separator is not None:
            return tf.RaggedTensorSpec([None, None], dtype, 1, tf.int64)
        return tf.TensorSpec([None], dtype)


class Lists(NamedTuple):
    """A column of several values per row: all values, and each row's number."""

    values: Array
    lengths: Array


def batches(
    chunks: Callable[[], Iterator[dict[str, Any]]],
    specs: Mapping[str, Any],
    batch_size: int,
    label: str | None,
    epochs: int = 1,
    shuffle: int = 0,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Returns batches of the chunks' rows."""
    batch_size = checks.integer(batch_size, "batch_size", least=1)
    epochs = checks.integer(epochs, "epochs", least=1)
    shuffle = checks.integer(shuffle, "shuffle", least=0)

    def tensors() -> Iterator[dict[str, Any]]:
        for chunk in chunks():
            with tf.device("/cpu:0"):
                columns = {
                    name: tf.RaggedTensor.from_row_lengths(*c, validate=False)
                    if isinstance(c, Lists)
                    else c
                    for name, c in chunk.items()
                }
            yield columns

    rows = tf.data.Dataset.from_generator(tensors, output_signature=dict(specs))
    if shuffle:
        rows = rows.unbatch().shuffle(shuffle, seed=seed).repeat(epochs)
        rows = rows.batch(batch_size)
    else:
        rows = rows.repeat(epochs).rebatch(batch_size)
    if label is not None:

        def apart(batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
            features = {k: v for k, v in batch.items() if k != label}
            return features, batch[label]

        rows = rows.map(apart)
    return rows.prefetch(2)


def narrow(values: Array, dtype: Any) -> tuple[Array, Array]:
    """Returns values in the dtype, and which of them the dtype does not hold.

    Args:
      values: integers or floats; whole floats may become integers.
      dtype: an integer or floating dtype. Fractions, and floats from 2**53 on,
        are rounded to it.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        narrowed = values.astype(dtype, copy=False)
        if values.dtype == narrowed.dtype:
            return narrowed, np.zeros(len(values), bool)
        is_bad = narrowed.astype(values.dtype) != values
        if values.dtype.kind == narrowed.dtype.kind == "f":
            is_whole = (np.trunc(values) == values) & (np.abs(values) < 2.0**53)
            is_bad &= is_whole | (np.isinf(narrowed) & np.isfinite(values))
            return narrowed, is_bad
        # 2**63 as an integer is another number on each processor.
        for one in values, narrowed:
            size = np.abs(one.astype(np.float64))
            is_bad |= ~(
                size <= 2.0**63 if one.dtype.kind == "i" else size < 2.0**63
            )
    return narrowed, is_bad


def fit(
    column: Any, kind: Kind, path: str, name: str, what: str, first: int
) -> Any:
    """Returns a column in its dtype, of one value per row or of Lists.

    Args:
      column: an array of values or Lists.
      kind: describes the requested column.
      path: the file.
      name: the name of the column.
      what: "row" or "record".
      first: the number of the first row, from 1.

    Raises:
      DataError: a value does not fit, or a row has several.
    """
    is_lists = isinstance(column, Lists)
    values = column.values if is_lists else column
    if kind.dtype != "string":
        values, is_bad = narrow(values, kind.dtype)
        if is_bad.any():
            place = int(np.argmax(is_bad))
            given = (column.values if is_lists else column)[place]
            if is_lists:
                ends = np.cumsum(column.lengths)
                place = int(np.searchsorted(ends, place, "right"))
            raise DataError(
                f"{what} {first + place}: column {name!r} is {given}, which "
                f"does not fit {kind.dtype}",
                path=path,
            )
    if not is_lists:
        return values
    if kind.separator is not None:
        return Lists(values, column.lengths)
    if (column.lengths > 1).any():
        place = int(np.argmax(column.lengths > 1))
        raise DataError(
            f"{what} {first + place}: column {name!r} has "
            f"{column.lengths[place]} values; name it as a Bag",
            path=path,
        )
    if len(values) == len(column.lengths):
        return values
    single = np.full(
        len(column.lengths), b"" if kind.dtype == "string" else 0, values.dtype
    )
    single[column.lengths == 1] = values
    return single


def from_arrow(array: Any, kind: Kind) -> Any:
    """Returns an array of values or Lists, of the dtypes of the file."""
    array = _plain(array)
    if kind.separator is None:
        return _values(array, kind)
    lengths = np.zeros(len(array), np.int64)
    full = array.drop_null()
    if len(full):
        size = getattr(full.type, "list_size", None)
        filled = np.asarray(full.value_lengths()) if size is None else size
        lengths[np.asarray(array.is_valid())] = filled
        full = full.flatten()
    return Lists(_values(_plain(full), kind), lengths)


def _plain(array: Any) -> Any:
    """Returns an array without extension types, views and dictionaries."""
    array = getattr(array, "storage", array)
    if "list_view<" in str(array.type):
        pa: Any = importlib.import_module("pyarrow")
        array = array.cast(pa.large_list(array.type.value_type))
    is_coded = hasattr(array, "dictionary_decode")
    return array.dictionary_decode() if is_coded else array


def _values(array: Any, kind: Kind) -> Array:
    """Returns int64, floats, or texts as bytes; the blank value for null."""
    pa: Any = importlib.import_module("pyarrow")
    is_text, given = kind.dtype == "string", str(array.type)
    blank: Any = b"" if is_text else kind.blank
    if given == "null" or not len(array):
        dtype: Any = object if is_text else kind.dtype
        return np.full(len(array), blank, dtype)
    if is_text and "view" in given:
        texts = array.to_pylist()
        array = pa.array([tf.compat.as_bytes(t) if t else t for t in texts])
    if is_text:
        is_binary = given in ("binary", "large_binary")
        array = array if is_binary else array.cast(pa.large_binary())
    elif given.startswith("decimal"):
        try:
            array = array.cast(pa.int64())
        except pa.ArrowInvalid:  # There are fractions, or larger numbers.
            array = array.cast(pa.float64())
    elif not given.startswith(("float", "double", "halffloat", "uint64")):
        array = array.cast(pa.int64())
    if not array.null_count or is_text or given == "halffloat":
        values = array.to_numpy(zero_copy_only=False)
    else:
        values = array.fill_null(0).to_numpy(zero_copy_only=False)
    if array.null_count:
        values = values.copy()
        values[np.asarray(array.is_null())] = blank
    return values
