"""Datasets of batches from CSV, Parquet and TFRecord files.

All three describe columns in the same way: a dtype for one value per row, a
`Bag` for several.
"""

from __future__ import annotations

import csv as csv_format
import dataclasses
import functools
import glob
import importlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import checks
from tfembed.errors import ArgumentError, DataError, UnsupportedError
from tfembed.optional_packages import optional

__all__ = ["Bag", "csv", "parquet", "tfrecord"]

_DTYPES = (tf.int32, tf.int64, tf.float32, tf.float64, tf.string)


@dataclasses.dataclass(frozen=True)
class Bag:
    """A column with several values per row: a tf.RaggedTensor in a batch.

    Attributes:
      dtype: int32, int64, float32, float64 or string, or its name.
      separator: the separator of the values in a field of a CSV file; other
        formats have lists.
    """

    dtype: Any = "int64"
    separator: str = "|"


Columns = Mapping[str, Bag | Any]
Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def csv(
    files: Files,
    columns: Columns,
    batch_size: int,
    *,
    label: str | None = None,
    delimiter: str = ",",
    epochs: int = 1,
    shuffle: int = 0,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Reads CSV files with a header.

    Args:
      files: a path or glob, or several, read in their order; the files of a
        glob in the order of their names. A scheme that TensorFlow does not
        support ("s3://") needs tensorflow-io.
      columns: the requested columns: a dtype or its name ("int64", "string",
        "float32", ...), or a `Bag`. An empty field is 0, "" or an empty bag.
      batch_size: the number of rows of a batch; the last one may be smaller.
      label: the column to return as the label; None: no label.
      delimiter: the separator of fields, one character.
      epochs: the number of passes over all files.
      shuffle: the number of rows of the shuffle buffer; 0: no shuffling.
      seed: the seed of the shuffling.

    Returns:
      A dataset of features, or of (features, label). Features are a dict of
      tensors [batch], or of RaggedTensors [batch, None] for bags.

    Raises:
      DataError: a file does not exist, or a header lacks a column.
      ArgumentError: an argument is not as described.
      UnsupportedError: tensorflow-io is needed and cannot be imported.
    """
    paths = _paths(files)
    kinds = _kinds(columns, label)
    batch_size = checks.integer(batch_size, "batch_size", least=1)
    if len(delimiter) != 1:
        raise ArgumentError(
            f"`delimiter` is one character, such as ',' or '\\t'; got "
            f"{delimiter!r}."
        )
    parts = [
        _csv_rows(list(part), header, kinds, delimiter)
        for header, part in itertools.groupby(
            paths, lambda path: _header(path, delimiter, kinds)
        )
    ]
    rows = functools.reduce(tf.data.Dataset.concatenate, parts)
    rows = _drawn(rows, shuffle, seed, epochs).batch(batch_size)
    return _batches(rows, kinds, label)


def parquet(
    files: Files,
    columns: Columns,
    batch_size: int,
    *,
    label: str | None = None,
    epochs: int = 1,
    shuffle: int = 0,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Reads Parquet files with pyarrow. Arguments and batches are as for `csv`.

    A column of lists is a `Bag`. A null value is 0, "" or an empty bag.

    Raises:
      UnsupportedError: pyarrow is not installed.
      DataError: a file does not exist, is not a Parquet file, or lacks a
        column. Values that do not fit the requested dtype end the dataset with
        an error that names the file and the column.
    """
    optional("pyarrow", "`tfembed.data.parquet`")
    reader = importlib.import_module("pyarrow.parquet")
    paths = _paths(files)
    kinds = _kinds(columns, label)
    batch_size = checks.integer(batch_size, "batch_size", least=1)
    for path in paths:
        found = _parquet_file(reader, path).schema_arrow.names
        _check_columns(path, found, kinds)

    def batches() -> Iterator[dict[str, Any]]:
        for path in paths:
            file = _parquet_file(reader, path)
            for batch in file.iter_batches(batch_size, columns=list(kinds)):
                yield {
                    name: _from_arrow(batch.column(name), kind, path, name)
                    for name, kind in kinds.items()
                }

    dataset = tf.data.Dataset.from_generator(
        batches,
        output_signature={name: _spec(kind) for name, kind in kinds.items()},
    )
    if shuffle:
        dataset = dataset.unbatch()
        dataset = _drawn(dataset, shuffle, seed, epochs).batch(batch_size)
    else:
        dataset = dataset.repeat(epochs).rebatch(batch_size)
    return _labelled(dataset, label)


def tfrecord(
    files: Files,
    columns: Columns,
    batch_size: int,
    *,
    label: str | None = None,
    compression: str = "",
    epochs: int = 1,
    shuffle: int = 0,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Reads TFRecord files of tf.train.Example. Arguments are as for `csv`.

    Args:
      files: as for `csv`.
      columns: as for `csv`; an Example holds int64, float32 and strings.
      batch_size: the number of rows of a batch; the last one may be smaller.
      label: the column to return as the label; None: no label.
      compression: "", "GZIP" or "ZLIB".
      epochs: the number of passes over all files.
      shuffle: the number of rows of the shuffle buffer; 0: no shuffling.
      seed: the seed of the shuffling.

    Raises:
      DataError: a file does not exist.
      ArgumentError: an argument is not as described.
    """
    paths = _paths(files)
    kinds = _kinds(columns, label)
    batch_size = checks.integer(batch_size, "batch_size", least=1)
    features: dict[str, Any] = {}
    for name, kind in kinds.items():
        stored = {tf.int32: tf.int64, tf.float64: tf.float32}.get(
            kind.dtype, kind.dtype
        )
        empty = "" if stored == tf.string else 0
        features[name] = (
            tf.io.RaggedFeature(stored, row_splits_dtype=tf.int64)
            if isinstance(kind, Bag)
            else tf.io.FixedLenFeature([], stored, default_value=empty)
        )

    def parse(examples: tf.Tensor) -> dict[str, Any]:
        parsed = tf.io.parse_example(examples, features)
        return {
            name: value
            if value.dtype == kinds[name].dtype
            else tf.cast(value, kinds[name].dtype)
            for name, value in parsed.items()
        }

    rows = tf.data.TFRecordDataset(paths, compression)
    rows = _drawn(rows, shuffle, seed, epochs).batch(batch_size)
    return _labelled(rows.map(parse, tf.data.AUTOTUNE), label)


@dataclasses.dataclass(frozen=True)
class _Single:
    """A column with one value per row."""

    dtype: tf.DType


def _kinds(columns: Columns, label: str | None) -> dict[str, Any]:
    if not columns:
        raise ArgumentError("`columns` names no column; name at least one.")
    if label is not None and label not in columns:
        raise ArgumentError(
            f"`label` is {label!r}, which `columns` does not have: "
            f"{', '.join(columns)}. Give its dtype there too."
        )
    kinds: dict[str, Any] = {}
    for name, given in columns.items():
        try:
            dtype = tf.as_dtype(
                given.dtype if isinstance(given, Bag) else given
            )
        except TypeError:
            dtype = None
        if dtype not in _DTYPES:
            raise ArgumentError(
                f"Column {name!r} is given {given!r}; it takes one of "
                f"{', '.join(d.name for d in _DTYPES)}, or a Bag of one."
            )
        if isinstance(given, Bag):
            kinds[name] = Bag(dtype, given.separator)
        else:
            kinds[name] = _Single(dtype)
    return kinds


def _paths(files: Files) -> list[str]:
    """Returns the files that match paths and globs, sorted within each."""
    patterns = [files] if isinstance(files, str | os.PathLike) else files
    paths: list[str] = []
    for given in patterns:
        pattern = os.fspath(given)
        try:
            found = sorted(tf.io.gfile.glob(pattern))
        except tf.errors.UnimplementedError:
            _register_file_systems(pattern)
            found = sorted(tf.io.gfile.glob(pattern))
        if not found:
            what = (
                "matches no file" if glob.has_magic(pattern) else "is no file"
            )
            raise DataError(what, path=pattern)
        paths += found
    if not paths:
        raise ArgumentError("`files` names no file.")
    return paths


def _register_file_systems(pattern: str) -> None:
    """Imports tensorflow-io, which registers its file systems."""
    try:
        importlib.import_module("tensorflow_io")
    except Exception as error:  # It may raise errors of TensorFlow, too.
        raise UnsupportedError(
            f"{pattern!r} need tensorflow-io, which cannot be imported here "
            f"({type(error).__name__}: {error}). Install it, with a version "
            "that fits your TensorFlow, or copy the files to a local folder."
        ) from error


def _check_columns(
    path: str, found: Sequence[str], wanted: Mapping[str, Any]
) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise DataError(
            f"has no column {', '.join(map(repr, missing))}; it has "
            f"{', '.join(map(repr, found))}",
            path=path,
        )


def _header(path: str, delimiter: str, kinds: Mapping[str, Any]) -> list[str]:
    with tf.io.gfile.GFile(path) as file:
        line = file.readline().lstrip("\ufeff")
    names = next(csv_format.reader([line], delimiter=delimiter), [])
    _check_columns(path, names, kinds)
    return names


def _csv_rows(
    paths: list[str],
    header: Sequence[str],
    kinds: Mapping[str, Any],
    delimiter: str,
) -> tf.data.Dataset:
    indices = {name: index for index, name in enumerate(header)}
    order = sorted(kinds, key=indices.__getitem__)
    defaults: list[tf.Tensor] = []
    for name in order:
        kind = kinds[name]
        dtype = tf.string if isinstance(kind, Bag) else kind.dtype
        empty = "" if dtype == tf.string else 0
        defaults.append(tf.constant([empty], dtype))
    rows = tf.data.experimental.CsvDataset(
        paths,
        defaults,
        header=True,
        field_delim=delimiter,
        select_cols=[indices[name] for name in order],
    )
    return rows.map(lambda *fields: dict(zip(order, fields)))


def _batches(
    rows: tf.data.Dataset, kinds: Mapping[str, Any], label: str | None
) -> tf.data.Dataset:
    def split(batch: dict[str, tf.Tensor]) -> dict[str, Any]:
        return {
            name: _split(batch[name], kind)
            if isinstance(kind, Bag)
            else batch[name]
            for name, kind in kinds.items()
        }

    return _labelled(rows.map(split, tf.data.AUTOTUNE), label)


def _split(fields: tf.Tensor, bag: Bag) -> tf.RaggedTensor:
    values = tf.strings.split(fields, bag.separator)
    # An empty field is an empty bag, not a bag with an empty text.
    values = tf.ragged.boolean_mask(values, tf.not_equal(values, ""))
    if bag.dtype == tf.string:
        return values
    return values.with_flat_values(
        tf.strings.to_number(values.flat_values, bag.dtype)
    )


def _parquet_file(reader: Any, path: str) -> Any:
    try:
        return reader.ParquetFile(path)
    except Exception as error:  # pyarrow has its own errors.
        raise DataError(
            f"cannot be read as a Parquet file: {error}", path=path
        ) from error


def _from_arrow(array: Any, kind: Any, path: str, name: str) -> Any:
    """Converts an Arrow array to a NumPy array, or a bag to a RaggedTensor."""
    import pyarrow as pa

    is_list = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    if is_list != isinstance(kind, Bag):
        raise DataError(
            f"column {name!r} is of {array.type}: "
            + ("name it as a Bag" if is_list else "it is not a Bag"),
            path=path,
        )
    if not is_list:
        return _values(array, kind.dtype, path, name)
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return tf.RaggedTensor.from_row_lengths(
        _values(array.flatten(), kind.dtype, path, name),
        tf.constant(lengths, tf.int64),
        validate=False,
    )


def _values(
    array: Any, dtype: tf.DType, path: str, name: str
) -> np.ndarray[Any, Any]:
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    wanted = {
        tf.int32: pa.int32(),
        tf.int64: pa.int64(),
        tf.float32: pa.float32(),
        tf.float64: pa.float64(),
        tf.string: pa.string(),
    }[dtype]
    is_text = pa.types.is_string(array.type) or pa.types.is_large_string(
        array.type
    )
    if is_text != (dtype == tf.string):
        raise DataError(
            f"column {name!r} is of {array.type}, but {dtype.name} is "
            "requested",
            path=path,
        )
    try:
        array = array.cast(wanted).fill_null("" if is_text else 0)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"column {name!r} does not fit {dtype.name}: {error}", path=path
        ) from error
    return array.to_numpy(zero_copy_only=False)


def _spec(kind: Any) -> Any:
    if isinstance(kind, Bag):
        return tf.RaggedTensorSpec([None, None], kind.dtype, 1, tf.int64)
    return tf.TensorSpec([None], kind.dtype)


def _drawn(
    rows: tf.data.Dataset, shuffle: int, seed: int | None, epochs: int
) -> tf.data.Dataset:
    epochs = checks.integer(epochs, "epochs", least=1)
    if checks.integer(shuffle, "shuffle", least=0):
        rows = rows.shuffle(shuffle, seed=seed)
    return rows.repeat(epochs) if epochs > 1 else rows


def _labelled(dataset: tf.data.Dataset, label: str | None) -> tf.data.Dataset:
    if label is not None:

        def apart(batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
            features = {k: v for k, v in batch.items() if k != label}
            return features, batch[label]

        dataset = dataset.map(apart)
    return dataset.prefetch(2)
