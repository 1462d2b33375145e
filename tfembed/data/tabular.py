"""Datasets of batches from CSV, Parquet and TFRecord files.

All three describe columns in the same way: a dtype for one value per row, a
`Bag` for several.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfembed.data import columns as arrays
from tfembed.data import tables
from tfembed.data.columns import Kind, Lists
from tfembed.errors import ArgumentError, DataError
from tfembed.optional_packages import optional

__all__ = ["Bag", "csv", "parquet", "tfrecord"]

_DTYPES = (tf.int32, tf.int64, tf.float32, tf.float64, tf.string)
_PARQUET_ROWS = 1 << 12
_RECORDS = 1024  # They are parsed at once.


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


def csv(
    files: tables.Files,
    columns: Columns,
    batch_size: int,
    *,
    label: str | None = None,
    delimiter: str = ",",
    epochs: int = 1,
    shuffle: int = 0,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Reads CSV files with a header, plain or gzipped, by pyarrow.

    Fields may be quoted as a whole. Empty lines at the end are left out. A row
    with more or fewer fields than the header, a text that is no number, and a
    number that its dtype does not hold end the dataset with an error that names
    the file and the line: only fractions are rounded.

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
      DataError: a file does not exist, or a header lacks a column or has it
        twice.
      ArgumentError: an argument is not as described.
      UnsupportedError: pyarrow, or tensorflow-io for a scheme, is needed and
        cannot be imported.
    """
    optional("pyarrow", "`tfembed.data.csv`")
    paths = tables.find_files(files)
    kinds = _kinds(columns, label)
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise ArgumentError(
            f"`delimiter` is one character, such as ',' or '\\t'; got {delimiter!r}."
        )
    layouts = [tables.read_header(path, delimiter, delimiter) for path in paths]
    for layout in layouts:
        tables.check_names(layout.names, kinds, layout.path, 1)

    def read(layout: tables.Layout) -> Iterator[dict[str, Any]]:
        for rows in tables.sift(tables.read(layout, kinds)):
            yield rows.columns

    return arrays.batches(
        read, layouts, kinds, batch_size, label, epochs, shuffle, seed
    )


def parquet(
    files: tables.Files,
    columns: Columns,
    batch_size: int,
    *,
    label: str | None = None,
    epochs: int = 1,
    shuffle: int = 0,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Reads Parquet files with pyarrow. Arguments and batches are as for `csv`.

    A column of lists is a `Bag`. A null value is 0, "" or an empty bag. A value
    that its dtype does not hold ends the dataset with an error that names the
    file, the column and the row, counted from 1.

    Raises:
      UnsupportedError: pyarrow is not installed.
      DataError: a file does not exist, is not a Parquet file, lacks a column,
        or has one of another type: dates, times and structs are none.
    """
    pa = optional("pyarrow", "`tfembed.data.parquet`")
    paths = tables.find_files(files)
    kinds = _kinds(columns, label)
    for path in paths:
        with _parquet_file(path) as file:
            schema = file.schema_arrow
        tables.check_names(schema.names, kinds, path, None)
        for name, kind in kinds.items():
            given = schema.field(name).type
            with tables.naming(path, f"column {name!r} is of {given}"):
                arrays.from_arrow(pa.nulls(0, given), kind)

    read = functools.partial(_parquet_chunks, kinds)
    return arrays.batches(
        read, paths, kinds, batch_size, label, epochs, shuffle, seed
    )


def tfrecord(
    files: tables.Files,
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

    A feature that an Example lacks is 0, "" or an empty bag. Damaged files and
    values that their dtype does not hold end the dataset with an error that
    names the file and the record, counted from 1.

    `compression` is "", "GZIP" or "ZLIB", in either case; "" also reads files
    that begin as gzip does.

    Raises:
      DataError: a file does not exist, or no record has a column.
      ArgumentError: an argument is not as described.
    """
    paths = tables.find_files(files)
    kinds = _kinds(columns, label)
    if compression.upper() not in ("", "GZIP", "ZLIB"):
        raise ArgumentError(
            f"`compression` is '', 'GZIP' or 'ZLIB'; got {compression!r}."
        )
    records = functools.partial(_records, kinds, compression.upper())
    missing, chunk = set(kinds), None
    for _, chunk in itertools.chain.from_iterable(map(records, paths)):
        missing -= {name for name in missing if chunk[name].lengths.any()}
        if not missing:
            break
    if missing and chunk is not None:
        raise DataError(
            f"no record has {', '.join(map(repr, sorted(missing)))}; an Example "
            "has features of the columns' names",
            path=", ".join(paths[:3]),
        )

    def read(path: str) -> Iterator[dict[str, Any]]:
        for first, chunk in records(path):
            yield arrays.fit(chunk, kinds, path, "record", first)

    return arrays.batches(
        read, paths, kinds, batch_size, label, epochs, shuffle, seed
    )


def _kinds(columns: Columns, label: str | None) -> dict[str, Kind]:
    if not columns:
        raise ArgumentError("`columns` names no column; name at least one.")
    if label is not None and label not in columns:
        raise ArgumentError(
            f"`label` is {label!r}, which `columns` does not have: "
            f"{', '.join(columns)}. Give its dtype there too."
        )
    kinds: dict[str, Kind] = {}
    for name, given in columns.items():
        is_bag = isinstance(given, Bag)
        try:
            dtype = tf.as_dtype(given.dtype if is_bag else given)
        except TypeError:
            dtype = None
        if dtype not in _DTYPES:
            raise ArgumentError(
                f"Column {name!r} is given {given!r}; it takes one of "
                f"{', '.join(d.name for d in _DTYPES)}, or a Bag of one."
            )
        if is_bag and not given.separator:
            raise ArgumentError(
                f"The separator of column {name!r} is empty; it is one or more "
                "characters, such as '|'."
            )
        kinds[name] = Kind(dtype.name, given.separator if is_bag else None)
    return kinds


def _parquet_file(path: str) -> Any:
    reader = importlib.import_module("pyarrow.parquet")
    with tables.naming(path, "cannot be read as a Parquet file"):
        # Otherwise a row group is in memory as a whole.
        return reader.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16)


def _parquet_chunks(
    kinds: Mapping[str, Kind], path: str
) -> Iterator[dict[str, Any]]:
    row = 1
    with _parquet_file(path) as file:
        batches = file.iter_batches(
            _PARQUET_ROWS, columns=list(kinds), use_threads=False
        )
        while True:
            with tables.naming(path, f"cannot be read from row {row} on"):
                batch = next(batches, None)
            if batch is None:
                return
            found = {
                name: arrays.from_arrow(batch.column(name), kind)
                for name, kind in kinds.items()
            }
            yield arrays.fit(found, kinds, path, "row", row)
            row += batch.num_rows


def _records(
    kinds: Mapping[str, Kind], compression: str, path: str
) -> Iterator[tuple[int, dict[str, Lists]]]:
    """Yields the number of a first record, and the records' features."""
    stored = {"int32": "int64", "float64": "float32"}
    features = {}
    for name, kind in kinds.items():
        dtype = stored.get(kind.dtype, kind.dtype)
        features[name] = tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
    compression = compression or _compression(path)
    first, size = 1, 0
    records = iter(tf.data.TFRecordDataset(path, compression).batch(_RECORDS))
    while True:
        what = f"record {first} or one after it is cut off or damaged"
        with tables.naming(path, what):
            batch = next(records, None)
        if batch is None:
            break
        try:
            parsed = tf.io.parse_example(batch, features)
        except tf.errors.OpError:
            for number, record in enumerate(batch, first):
                with tables.naming(path, f"record {number}"):
                    tf.io.parse_example(record[tf.newaxis], features)
            raise
        yield (
            first,
            {
                name: Lists(value.values.numpy(), value.row_lengths().numpy())
                for name, value in parsed.items()
            },
        )
        first += len(batch)
        lengths = tf.cast(tf.strings.length(batch), tf.int64)
        size += int(tf.reduce_sum(lengths)) + 16 * len(batch)
    if compression != "ZLIB":
        # TensorFlow passes over less than the head of a record.
        with tables.naming(path, f"record {first} is cut off or damaged"):
            tables.check_size(path, size)


def _compression(path: str) -> str:
    """Returns "GZIP" where a file begins as gzip does and as no record does."""
    if tables.is_gzipped(path):
        try:
            next(iter(tf.data.TFRecordDataset(path)), None)
        except tf.errors.OpError:
            return "GZIP"
    return ""
