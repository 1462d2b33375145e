"""Access to tables in Python's terms: subscripts, `in`, `len`, data frames."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.ops.private import orders_by_itself
from tfembed.optional_packages import optional

if TYPE_CHECKING:
    from tfembed.tables.sharded_table import ShardedTable

__all__ = ["KeyAccess", "by_number"]


class KeyAccess(abc.ABC):
    """Base of classes that map keys to rows: small reads in Python's syntax.

        table[42]            the row of a key, or its initial row
        table[[42, 7]]       rows, keys.shape + [dim]
        42 in table          whether the key is there; as in a dict, no key of
                             another kind is ("x" among integers)
        len(table)           the number of keys
        for key in table     all keys, from a copy
        table.to_pandas()    a data frame, `table.from_pandas(frame)` back
        table.to_numpy()     keys and rows as arrays

    Subscripts work in functions and graphs too; the other reads are eager only.
    `bool(table)` is True even for an empty table.
    """

    name: Any

    @property
    @abc.abstractmethod
    def _by_key(self) -> ShardedTable:
        """The table that has the rows."""

    def __getitem__(self, keys: Any) -> tf.Tensor:
        if isinstance(keys, slice):
            raise errors.ArgumentError(
                f"The keys of '{self.name}' have no order, so no slice can be "
                f"read; got {keys!r}. Give keys, as in table[[1, 2]], or read "
                "all rows by `export`."
            )
        rows: tf.Tensor = self._by_key.lookup(_listed(keys))[0]
        return rows

    def __contains__(self, key: Any) -> bool:
        self._require_eager("in", "contains(keys) of the table")
        if tf.is_tensor(key) or isinstance(key, tf.Variable):
            key = key.numpy()
        is_array = isinstance(key, np.ndarray) and key.ndim > 0
        if is_array or isinstance(key, (list, tuple, set, range)):
            raise errors.ArgumentError(
                f"`in` asks '{self.name}' for one key; got {key!r}. Ask for "
                "several by `contains(keys)` of the table."
            )
        table = self._by_key
        one = _one_key(getattr(key, "item", lambda: key)(), table.key_dtype)
        return one is not None and bool(table.contains(one))

    def __len__(self) -> int:
        self._require_eager("len", "size()")
        return int(self._by_key.size())

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        self._require_eager("iter", "export()")
        yield from _python_keys(self._by_key.keys())

    def to_numpy(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Copies all rows at one moment into arrays; eager only.

        Returns:
          keys: integers [n], or objects [n]: `str` if all are UTF-8, else
            `bytes`.
          rows: [n, dim], of the table's dtype; float32 for halves.

        Raises:
          tfembed.errors.UnsupportedError: the call is in a function or a graph.
        """
        self._require_eager("to_numpy", "export()")
        keys, values, *_ = self._by_key.export_columns()
        found = _python_keys(keys)
        if isinstance(found, list):
            found = np.array(found, object)
        return found, _numpy(values)

    def to_pandas(self, *, slots: bool = False) -> Any:
        """Copies all rows at one moment into a `pandas.DataFrame`; eager only.

        Args:
          slots: whether to append the optimizer's slots: columns
            "<slot>_0", "<slot>_1", ..., or "<slot>" for a slot of one number a
            row.

        Returns:
          A row for each key. The index is called "key"; string keys are `str`
          if all are UTF-8, else `bytes`. The columns are 0, 1, ..., dim - 1.

        Raises:
          tfembed.errors.UnsupportedError: pandas is not installed, or the call
            is in a function or a graph.
        """
        pandas = optional("pandas", "`to_pandas`")
        self._require_eager("to_pandas", "export()")
        table = self._by_key
        keys, values, *columns = table.export_columns()
        index = pandas.Index(_python_keys(keys), name="key")
        frame = pandas.DataFrame(_numpy(values), index=index)
        if not slots:
            return frame
        parts = [
            pandas.DataFrame(
                _numpy(rows), index=index, columns=_slot_columns(slot, width)
            )
            for slot, width, rows in zip(
                table.slot_names, table.slot_widths, columns, strict=True
            )
        ]
        return pandas.concat([frame, *parts], axis=1)

    def from_pandas(self, frame: Any) -> None:
        """Writes the rows of a `pandas.DataFrame`; other keys stay.

        A row with a NaN, which pandas puts where a number is missing, is
        written as it is and counted in `stats().nan_rows`, as by `upsert`.

        Args:
          frame: a frame in the form of `to_pandas`: the keys are the index or a
            column called "key"; `dim` columns have the values. Columns called 0
            to dim - 1, as numbers or text, go by their names, others by their
            order. Slots are written too if the frame has the columns of all
            slots of the table.

        Raises:
          tfembed.errors.UnsupportedError: pandas is not installed, or the call
            is in a graph.
          tfembed.errors.ArgumentError: not a data frame, another number of
            columns, or a repeated key. Nothing is changed.
          tfembed.errors.DtypeError: keys or numbers of another dtype.
        """
        pandas = optional("pandas", "`from_pandas`")
        if not orders_by_itself():
            self._require_eager("from_pandas", "upsert")
        if not isinstance(frame, pandas.DataFrame):
            raise errors.ArgumentError(
                f"`frame` must be a pandas.DataFrame; got {type(frame)}. Write "
                "keys and rows that are no data frame by `upsert`."
            )
        if "key" in frame.columns:
            frame = frame.set_index("key")
        if not frame.index.is_unique:
            twice = list(frame.index[frame.index.duplicated()][:3])
            raise errors.ArgumentError(
                f"Each key of `frame` must come once; got {twice} more than "
                f"once for '{self.name}'. Keep one row of each."
            )
        table = self._by_key
        widths = dict(zip(table.slot_names, table.slot_widths, strict=True))
        of_slots = [c for s, n in widths.items() for c in _slot_columns(s, n)]
        given = [column for column in of_slots if column in frame.columns]
        has_slots = bool(of_slots) and given == of_slots
        rows = frame.drop(columns=of_slots if has_slots else [])
        if rows.shape[1] != table.dim:
            raise errors.ArgumentError(
                f"`frame` must have {table.dim} columns of numbers, the width "
                f"of '{self.name}'"
                + (
                    f", and may have those of its slots, {of_slots}"
                    * bool(of_slots)
                )
                + f"; got {list(frame.columns)}."
            )
        keys = frame.index.to_numpy()
        values = _frame_values(_by_number(rows), table)
        if not has_slots:
            table.upsert(keys, values)
            return
        trained: Any = table
        trained.write_trained(
            keys,
            tf.constant(
                np.concatenate([values, frame[of_slots].to_numpy()], 1),
                tf.float32,
            ),
        )

    def _require_eager(self, call: str, instead: str) -> None:
        if not tf.executing_eagerly():
            raise errors.UnsupportedError(
                f"`{call}` of '{self.name}' gives Python's values; use it in "
                f"eager mode, outside of tf.function. In a graph use {instead}."
            )


def _one_key(key: Any, dtype: tf.DType) -> Any:
    """Converts a key to int or text; None for a key of another dtype.

    Numbers that are equal are one key, as in a dict: 1.0 is 1.
    """
    if dtype == tf.string:
        return key if isinstance(key, (str, bytes)) else None
    is_whole = isinstance(key, int) or (
        isinstance(key, float) and key.is_integer()
    )
    if not is_whole or not dtype.min <= int(key) <= dtype.max:
        return None
    return int(key)


def by_number(names: Sequence[Any]) -> list[Any]:
    """Returns the names of columns in the order of a row's numbers.

    Args:
      names: the names of all columns. If they are 0, 1, ..., as numbers or
        text, they are sorted by number; else they keep their order.
    """
    numbered = {str(name): name for name in names}
    wanted = [str(i) for i in range(len(names))]
    if set(numbered) != set(wanted):
        return list(names)
    return [numbered[number] for number in wanted]


def _listed(keys: Any) -> Any:
    """Converts tuples, sets and ranges of keys to lists."""
    return list(keys) if isinstance(keys, (tuple, set, range)) else keys


def _slot_columns(slot: str, width: int) -> list[str]:
    return [slot] if width == 1 else [f"{slot}_{i}" for i in range(width)]


def _numpy(values: tf.Tensor) -> np.ndarray[Any, Any]:
    """Converts a tensor to an array; float16 and bfloat16 become float32."""
    if values.dtype in (tf.bfloat16, tf.float16):
        values = tf.cast(values, tf.float32)
    array: np.ndarray[Any, Any] = values.numpy()
    return array


def _by_number(rows: Any) -> Any:
    return rows[by_number(rows.columns)] if rows.columns.is_unique else rows


def _frame_values(rows: Any, table: ShardedTable) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = rows.to_numpy()
    if table.value_dtype == tf.string or values.dtype.kind not in "iuf":
        return values
    dtype = table.value_dtype
    return values.astype(dtype.as_numpy_dtype) if dtype.is_floating else values


def _python_keys(keys: tf.Tensor) -> Any:
    """Returns an array of integers, or a list of `str`, or of bytes.

    Strings become `str` if all of them are UTF-8.
    """
    if keys.dtype != tf.string:
        return keys.numpy()
    found = keys.numpy().tolist()
    try:
        return [key.decode() for key in found]
    except UnicodeDecodeError:
        return found
