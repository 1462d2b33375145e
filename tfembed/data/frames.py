"""Data frames and tables in memory, as datasets of batches."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import checks
from tfembed.data import columns
from tfembed.data.columns import Kind
from tfembed.errors import ArgumentError, DataError, DtypeError
from tfembed.optional_packages import optional

# The dtypes of columns by the beginnings of the names of Arrow's types.
_DTYPES = {
    **dict.fromkeys(
        ("string", "large_string", "binary", "large_bin"), "string"
    ),
    **dict.fromkeys(("int", "uint", "bool", "null"), "int64"),
    **dict.fromkeys(("float", "halffloat"), "float32"),
    **dict.fromkeys(("double", "timestamp", "date", "duration"), "float64"),
}
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def from_pandas(
    frame: Any,
    *,
    batch_size: int,
    label: str | None = None,
    weight: str | None = None,
    missing: Mapping[str, Any] | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    validation_split: float = 0.0,
) -> Any:
    """Makes batches of a data frame.

    Integers, booleans and categories of these become int64; floats stay float32
    or float64; texts become strings; times become seconds since 1970 in UTC and
    durations seconds, float64; lists become ragged.

    Args:
      frame: a pandas.DataFrame, whose index is left out, a polars.DataFrame or
        a pyarrow.Table. Its columns are copied.
      batch_size: the rows of a batch; the last one may have fewer.
      label: the column of labels.
      weight: the column of the rows' weights, which needs a `label`.
      missing: by column, what stands for a missing value (None, NaN, NaT): an
        id of its own. In a column of lists it stands for missing items, and a
        missing list is empty. Other columns refuse missing values.
      shuffle: whether all rows get another order in each epoch.
      seed: the seed of these orders; None: others in each process.
      validation_split: the share of the rows, the last ones, of a second
        dataset, which is not shuffled.

    Returns:
      A tf.data.Dataset of features, a dict of tensors [batch] and RaggedTensors
      [batch, None], or of (features, labels) or (features, labels, weights).
      With `validation_split` two of these: (training, validation).

    Raises:
      tfembed.errors.ArgumentError: no such column, two of one name, mixed types
        in one, no rows, or an argument that is not allowed.
      tfembed.errors.DataError: a missing value, or an integer beyond int64.
      tfembed.errors.DtypeError: no frame, or a column of another type.
      tfembed.errors.UnsupportedError: pyarrow is not installed.
    """
    batch_size = checks.integer(batch_size, "batch_size", least=1)
    if not isinstance(shuffle, bool):
        raise ArgumentError(
            f"`shuffle` must be True, for all rows, or False; got {shuffle!r}."
        )
    table, missing = _table(frame), dict(missing or {})
    names = table.column_names
    for name in {label, weight, *missing} - {None, *names}:
        raise ArgumentError(
            f"`label`, `weight`, `missing` name columns of {names}; got {name!r}."
        )
    share = checks.number(validation_split)
    held_out = int(table.num_rows * share) if share and share < 1 else 0
    first = table.num_rows - held_out
    if share is None or (held_out <= 0) != (share == 0):
        raise ArgumentError(
            "`validation_split` must be a share of the rows, below 1, that is at "
            f"least one of {table.num_rows}; got {validation_split!r}."
        )
    tensors = {name: _tensor(table[name], name, missing) for name in names}
    if weight is not None:
        is_text = tensors[weight].dtype == tf.string
        if label in (None, weight) or is_text or tensors[weight].shape.rank > 1:
            raise ArgumentError(
                f"`weight` must be a column of numbers beside a `label`; got "
                f"{weight!r}, beside {label!r}."
            )
        tensors[weight] = tf.cast(tensors[weight], tf.float32)

    def structured(rows: tf.Tensor) -> Any:
        batch = {name: tf.gather(one, rows) for name, one in tensors.items()}
        others = [batch.pop(n) for n in (label, weight) if n is not None]
        return (batch, *others) if others else batch

    train = tf.data.Dataset.range(first).batch(batch_size)
    last = tf.data.Dataset.range(first, table.num_rows).batch(batch_size)
    train = _shuffled(train, first, seed) if shuffle else train
    pair = [rows.map(structured).prefetch(2) for rows in (train, last)]
    return tuple(pair) if held_out else pair[0]


def _shuffled(rows: tf.data.Dataset, count: int, seed: Any) -> tf.data.Dataset:
    """Returns batches of `count` row numbers, drawn anew, without a buffer."""
    last, experimental = (
        tf.constant(count - 1, tf.int64),
        tf.random.experimental,
    )
    keys = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)

    def order(key: tf.Tensor) -> tf.data.Dataset:
        return rows.map(lambda n: experimental.index_shuffle(n, key, last))

    drawn = keys.batch(2, drop_remainder=True).take(1).flat_map(order)
    counted = tf.data.experimental.assert_cardinality(rows.cardinality())
    return drawn.apply(counted)


def _table(frame: Any) -> Any:
    """Returns a frame as a pyarrow.Table with rows and distinct columns."""
    pa: Any = optional("pyarrow", "`tfembed.data.from_pandas`")
    table = getattr(frame, "to_arrow", lambda: frame)()  # Of polars.
    try:
        if hasattr(frame, "iloc"):
            table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise ArgumentError(
            "Columns of `frame` must have names that differ and values of one "
            f"type each: {error}. Convert values, as by `.astype(str)`."
        ) from error
    if not isinstance(table, pa.Table):
        raise DtypeError(
            "`frame` must be a frame of pandas or polars, or a pyarrow.Table; "
            f"got {type(frame)}."
        )
    if not table.num_rows or len(set(table.column_names)) < table.num_columns:
        raise ArgumentError(
            "`frame` must have rows, and columns whose names differ; got "
            f"{table.num_rows} rows of {table.column_names}."
        )
    return table


def _tensor(
    array: Any, name: str, missing: Mapping[str, Any], what: str = "row"
) -> Any:
    """Returns a column as a tensor, or as a RaggedTensor."""
    pa: Any = importlib.import_module("pyarrow")
    compute: Any = importlib.import_module("pyarrow.compute")
    array = array.combine_chunks() if hasattr(array, "chunks") else array
    array = getattr(array, "storage", array)
    if hasattr(array, "dictionary_decode"):
        array = array.dictionary_decode()
    is_missing, given = array.is_null(nan_is_null=True), str(array.type)
    has_missing = compute.any(is_missing).as_py()
    if has_missing and name not in missing:
        raise DataError(
            f"{what} {is_missing.index(True).as_py() + 1}: column {name!r} has "
            "a missing value. Drop such rows, or say what stands for it: "
            f"missing={{{name!r}: ...}}.",
            path="frame",
        )
    if "list" in given.partition("<")[0]:
        lengths = compute.list_value_length(array).fill_null(0)
        items = compute.list_flatten(array.drop_null())
        return tf.RaggedTensor.from_row_lengths(
            _tensor(items, name, missing, "item"),
            np.asarray(lengths).astype(np.int64),
        )
    dtypes = [_DTYPES[begin] for begin in _DTYPES if given.startswith(begin)]
    if not dtypes:
        raise DtypeError(
            f"Column {name!r} must have numbers, texts, times, categories or "
            f"lists of them; got {given}. Convert it, or drop it."
        )
    if "view" in given:
        array = array.cast(pa.large_binary())
    elif given == "bool":
        array = array.cast(pa.int64())
    elif dtypes[0] == "float64" and given != "double":
        if given.startswith("date"):
            array = array.cast(pa.timestamp("ms"))
        per = _PER_SECOND[array.type.unit]
        ticks = array.cast(pa.int64()).cast(pa.float64(), safe=False)
        array = compute.divide(ticks, per)
    try:
        if has_missing and given == "null":
            return _tensor(pa.array([missing[name]] * len(array)), name, {})
        if has_missing:
            value = pa.scalar(missing[name], array.type)
            array = compute.if_else(is_missing, value, array)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise ArgumentError(
            f"`missing` must have a value of column {name!r}, which is {given}; "
            f"got {missing[name]!r}."
        ) from error
    kinds = {name: Kind(dtypes[0])}
    found = {name: columns.from_arrow(array, kinds[name])}
    with tf.device("/cpu:0"):
        return tf.constant(columns.fit(found, kinds, "frame", what, 1)[name])
