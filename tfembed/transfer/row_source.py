"""Rows by key from any source: one description, which yields chunks."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.monitoring.vocabulary_rows import VocabularyRows, has_vocabulary
from tfembed.optional_packages import optional
from tfembed.saved.saved_table import Chunk, SavedTable
from tfembed.saved.saved_tables import open_saved
from tfembed.tables import HashTable
from tfembed.tables.key_access import by_number

__all__ = ["RowSource", "of_layer", "row_source"]

_PARQUET_ROWS = 1 << 16

_FORMS = (
    "a path (of a checkpoint, a SavedModel, a Keras file, raw row files, a "
    "'.parquet', '.npz' or '.npy' file), a pair of arrays (keys, rows), a dict of "
    "rows by key, a pandas.DataFrame, a HashTable, Variable or variable [n, dim], a "
    "Keras Embedding, "
    "or a pair of a StringLookup or IntegerLookup and an Embedding"
)


@dataclasses.dataclass(frozen=True)
class RowSource:
    """The rows of a source, for a table to start with.

    Attributes:
      what: the source's name in errors.
      key_dtype: "int64" or "string".
      width: the number of elements of a row.
      num_rows: the maximum number of rows.
      chunks: yields all rows and slots in chunks, on each call.
      rule: the update rule of the slots, by its name in the core; None:
        unknown.
      slot_widths: the widths of the slots by name.
      left_out: the names of rows that have no key.
      may_repeat: whether a key may come twice.
    """

    what: str
    key_dtype: str
    width: int
    num_rows: int
    chunks: Callable[[], Iterator[Chunk]]
    rule: str | None = None
    slot_widths: Mapping[str, int] = dataclasses.field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    may_repeat: bool = False


def row_source(source: Any, name: str | None, key: str) -> RowSource:
    """Determines the type of a source, and describes its rows.

    Args:
      source: a source in one of the forms of `tfembed.warm_start`.
      name: the name of a table, if a file has several.
      key: the name of the column of keys, for files and frames with columns.

    Raises:
      tfembed.errors.ArgumentError: the form is unknown, or `name` is missing.
      tfembed.errors.CheckpointError: a file cannot be read.
      tfembed.errors.UnsupportedError: a package is missing.
    """
    source = of_layer(source)
    if isinstance(source, Variable):
        source = source.table
    if isinstance(source, HashTable):
        return _of_table(source)
    if has_vocabulary(source):
        return _of_vocabulary(VocabularyRows(source))
    if isinstance(source, SavedTable):
        return _of_saved(source, f"table '{source.name}'")
    if isinstance(source, (str, os.PathLike)):
        return _of_path(os.fspath(source), name, key)
    if isinstance(source, Mapping):
        return _of_arrays(list(source), list(source.values()), "the dict")
    if _is_frame(source):
        return _of_frame(source, key)
    if _is_embedding(source):
        rows = _keras_rows(source)
        return _of_arrays(np.arange(len(rows)), rows, f"layer '{source.name}'")
    if isinstance(source, (tuple, list)) and len(source) == 2:
        first, second = source
        if hasattr(first, "get_vocabulary") and _is_embedding(second):
            return _of_lookup(first, second)
        if _is_layer(first) or _is_layer(second):
            raise errors.ArgumentError(
                "A pair of layers must be (StringLookup or IntegerLookup, "
                f"Embedding); got ({type(first).__name__}, "
                f"{type(second).__name__}). The keys of other layers are "
                "unknown: give (keys, rows) as arrays."
            )
        return _of_arrays(first, second, "the pair of arrays")
    raise errors.ArgumentError(
        f"`source` must be {_FORMS}; got {type(source).__name__}."
    )


def of_layer(source: Any) -> Any:
    """Returns the Variable of a Keras layer that has one; others unchanged.

    Raises:
      tfembed.errors.StateError: the layer has not made its table yet.
    """
    if isinstance(source, (Variable, HashTable)):
        return source
    if _is_layer(source) and getattr(source, "table", source) is None:
        raise errors.StateError(
            f"Layer '{source.name}' has no table before it knows the dtype of "
            "its ids. Give it `key_dtype`, 'int64' or 'string', or call it first."
        )
    for name in ("table", "params"):
        held = getattr(source, name, None)
        if isinstance(held, Variable):
            return held
    return source


def _of_path(path: str, name: str | None, key: str) -> RowSource:
    if path.endswith(".parquet"):
        return _of_parquet(path, key)
    if path.endswith((".npz", ".npy")):
        return _of_numpy(path, key)
    saved = open_saved(path)
    if name is None:
        if len(saved) != 1:
            raise errors.ArgumentError(
                f"'{path}' has {len(saved)} tables, {list(saved)}; choose one "
                "by `name`."
            )
        (name,) = saved
    return _of_saved(saved[name], f"table '{name}' of '{path}'")


def _of_saved(table: SavedTable, what: str) -> RowSource:
    if table.dtype in ("string", "bool"):
        raise errors.DtypeError(
            f"The rows of {what} are {table.dtype}; a warm start needs rows of "
            "numbers."
        )
    if table.fingerprints is not None:
        raise errors.UnsupportedError(
            f"The keys of {what} are there as hashes alone. Give the SavedModel "
            "that it was exported from, or a checkpoint."
        )
    return RowSource(
        what=what,
        key_dtype="string" if table.key_dtype == "string" else "int64",
        width=table.width,
        num_rows=table.num_rows,
        chunks=lambda: table.chunks(counters=False),
        rule=table.rule,
        slot_widths=table.slot_widths,
    )


def _of_table(table: HashTable) -> RowSource:
    optimizer: Any = table.optimizer

    def chunks() -> Iterator[Chunk]:
        keys, values, *slots = table.export_columns()
        yield Chunk(
            keys.numpy(),
            _numbers(values),
            {
                slot: rows.numpy()
                for slot, rows in zip(table.slot_names, slots, strict=True)
            },
            None,
        )

    return RowSource(
        what=f"table '{table.name}'",
        key_dtype="string" if table.key_dtype == tf.string else "int64",
        width=table.dim,
        num_rows=int(table.size()),
        chunks=chunks,
        rule=optimizer and optimizer.rule_text().split()[0],
        slot_widths=dict(zip(table.slot_names, table.slot_widths, strict=True)),
    )


def _of_vocabulary(table: VocabularyRows) -> RowSource:
    rule = table.optimizer and table.optimizer.rule_text().split()[0]
    return RowSource(
        what=f"table '{table.name}'",
        key_dtype="int64",
        width=table.dim,
        num_rows=table.num_rows,
        chunks=table.chunks,
        rule=rule,
        slot_widths=dict(zip(table.slot_names, table.slot_widths, strict=True)),
    )


def _of_arrays(keys: Any, rows: Any, what: str) -> RowSource:
    as_keys = _keys(keys, what)
    try:
        as_rows = _numbers(rows)
    except ValueError as error:
        raise errors.ArgumentError(
            f"The rows of {what} must be [n, width], one for each of its "
            f"{len(as_keys)} keys; got rows that differ in length."
        ) from error
    if as_rows.ndim != 2 or len(as_rows) != len(as_keys):
        raise errors.ArgumentError(
            f"The rows of {what} must be [n, width], one for each of its "
            f"{len(as_keys)} keys; got shape {list(as_rows.shape)}."
        )
    if as_rows.dtype.kind not in "iuf":
        raise errors.DtypeError(
            f"The rows of {what} must be numbers; got {as_rows.dtype}."
        )
    return RowSource(
        what=what,
        key_dtype="string" if as_keys.dtype == object else "int64",
        width=as_rows.shape[1],
        num_rows=len(as_keys),
        chunks=lambda: iter([Chunk(as_keys, as_rows, {}, None)]),
        may_repeat=True,
    )


def _keys(keys: Any, what: str) -> np.ndarray[Any, Any]:
    array = np.asarray(keys.numpy() if tf.is_tensor(keys) else keys)
    if array.ndim != 1:
        raise errors.ArgumentError(
            f"The keys of {what} must be [n]; got shape {list(array.shape)}."
        )
    if array.dtype.kind in "iu" and array.dtype != np.uint64:
        return array.astype(np.int64)
    if not array.size:
        return array.astype(np.int64)
    if array.dtype.kind in "SUO" and all(
        isinstance(one, (str, bytes)) for one in array
    ):
        return np.array([_bytes(one) for one in array], object)
    raise errors.DtypeError(
        f"The keys of {what} must be integers or strings; got {array.dtype}."
    )


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def _numbers(rows: Any) -> np.ndarray[Any, Any]:
    if tf.is_tensor(rows) and rows.dtype in (tf.bfloat16, tf.float16):
        rows = tf.cast(rows, tf.float32)
    array: np.ndarray[Any, Any] = np.asarray(
        rows.numpy() if tf.is_tensor(rows) else rows
    )
    return array


def _of_numpy(path: str, key: str) -> RowSource:
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise errors.CheckpointError(
            f"'{path}' cannot be read as NumPy's: {error}"
        ) from error
    if isinstance(loaded, np.ndarray):
        return _of_arrays(np.arange(len(loaded)), loaded, f"'{path}'")
    names = list(loaded)
    of_keys = [one for one in (key, "keys", "key") if one in names]
    others = [one for one in names if one not in of_keys]
    of_rows = [one for one in ("rows", "values", *others) if one in names]
    if not of_keys or not of_rows:
        raise errors.CheckpointError(
            f"'{path}' must have arrays 'keys' [n] and 'rows' [n, width]; it has "
            f"{names}."
        )
    try:
        keys, rows = loaded[of_keys[0]], loaded[of_rows[0]]
    except ValueError as error:
        raise errors.CheckpointError(
            f"'{path}' has arrays of Python objects, which are not read: "
            f"{error} Save keys as `np.asarray(keys, 'U')` or 'S' or int64, and "
            "rows as float32, or write a '.parquet' file."
        ) from error
    return _of_arrays(keys, rows, f"'{path}'")


def _is_frame(source: Any) -> bool:
    return type(source).__module__.partition(".")[0] == "pandas" and hasattr(
        source, "columns"
    )


def _of_frame(frame: Any, key: str) -> RowSource:
    if key in frame.columns:
        frame = frame.set_index(key)
    columns = [c for c in frame.columns if frame[c].dtype.kind in "iuf"]
    if len(columns) != len(frame.columns):
        raise errors.ArgumentError(
            f"The columns of the data frame beside {key!r} must be numbers; got "
            f"{[c for c in frame.columns if c not in columns]} too. Drop them."
        )
    if frame.columns.is_unique:
        frame = frame[by_number(frame.columns)]
    return _of_arrays(
        frame.index.to_numpy(), frame.to_numpy(), "the data frame"
    )


def _of_parquet(path: str, key: str) -> RowSource:
    optional("pyarrow", "`warm_start` of a Parquet file")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise errors.CheckpointError(
            f"'{path}' cannot be read as Parquet: {error}"
        ) from error
    names = file.schema_arrow.names
    if key == "key" and "keys" in names and key not in names:
        key = "keys"  # As `tfembed inspect --to` names it.
    if key not in names:
        raise errors.CheckpointError(
            f"'{path}' has no column {key!r}; its columns are {names}. Name "
            "the column of keys by `key`."
        )

    def chunks() -> Iterator[Chunk]:
        with parquet.ParquetFile(path) as opened:
            for batch in opened.iter_batches(batch_size=_PARQUET_ROWS):
                keys = _keys(_arrow_keys(batch, key), f"'{path}'")
                yield Chunk(keys, _columns(batch, key, path), {}, None)

    empty = file.schema_arrow.empty_table().to_batches() or []
    first = next(file.iter_batches(batch_size=1), empty[0] if empty else None)
    if first is None or not first.num_rows:
        raise errors.CheckpointError(f"'{path}' has no rows.")
    found = _keys(_arrow_keys(first, key), f"'{path}'")
    return RowSource(
        what=f"'{path}'",
        key_dtype="string" if found.dtype == object else "int64",
        width=_columns(first, key, path).shape[1],
        num_rows=file.metadata.num_rows,
        chunks=chunks,
        may_repeat=True,
    )


def _arrow_keys(batch: Any, key: str) -> np.ndarray[Any, Any]:
    """Returns keys; bytes as objects, as NumPy's own drop zeros at the end."""
    keys: np.ndarray[Any, Any] = batch.column(key).to_numpy(
        zero_copy_only=False
    )
    return keys


def _columns(batch: Any, key: str, path: str) -> np.ndarray[Any, Any]:
    """Returns rows from a column of lists, or from a column per element."""
    others = by_number([name for name in batch.schema.names if name != key])
    lists = [
        n for n in others if hasattr(batch.schema.field(n).type, "value_type")
    ]
    if key == "keys" and "rows" in lists:  # Slots and counters may follow.
        lists = others = ["rows"]
    try:
        if len(lists) == 1 and len(others) == 1:
            return np.asarray(batch.column(lists[0]).to_pylist(), np.float32)
        rows = [
            batch.column(name).to_numpy(zero_copy_only=False) for name in others
        ]
        return np.stack(rows, 1).astype(np.float32)
    except (TypeError, ValueError) as error:
        raise errors.CheckpointError(
            f"'{path}' must have, beside {key!r}, one column of lists of the same "
            f"length or a column of numbers for each of a row's; it has {others}."
        ) from error


def _is_layer(value: Any) -> bool:
    return hasattr(value, "get_weights") and hasattr(value, "get_config")


def _is_embedding(layer: Any) -> bool:
    return hasattr(layer, "input_dim") and hasattr(layer, "output_dim")


def _keras_rows(layer: Any) -> np.ndarray[Any, Any]:
    if not getattr(layer, "built", True) or not layer.get_weights():
        raise errors.StateError(
            f"Layer '{layer.name}' has no rows yet. Build it, or load its "
            "weights, first."
        )
    (rows,) = layer.get_weights()
    return np.asarray(rows, np.float32)


def _of_lookup(lookup: Any, layer: Any) -> RowSource:
    """Returns an Embedding's rows by the words of a lookup layer's vocabulary.

    Keras' special tokens have the first indices. They are the difference
    between the vocabulary and `get_vocabulary(include_special_tokens=False)`.
    """
    rows = _keras_rows(layer)
    words = list(lookup.get_vocabulary(include_special_tokens=False))
    every = list(lookup.get_vocabulary(include_special_tokens=True))
    if not words:
        raise errors.StateError(
            f"Layer '{lookup.name}' has no vocabulary yet. Adapt it, or give it "
            "one, first."
        )
    first = len(every) - len(words)
    if len(rows) < len(every):
        raise errors.ArgumentError(
            f"Layer '{layer.name}' has {len(rows)} rows, and the vocabulary of "
            f"'{lookup.name}' has {len(every)} words; they do not belong "
            "together."
        )
    source = _of_arrays(
        words, rows[first : first + len(words)], f"layer '{layer.name}'"
    )
    return dataclasses.replace(
        source,
        left_out=tuple(str(token) for token in every[:first])
        + tuple(f"row {i}" for i in range(len(every), len(rows))),
    )
