"""Wrappers of the ops on one shard of a table.

`table` is a resource handle of `create`. Keys have any shape [...], rows are
[..., dim], both of the table's dtypes. Ops raise tf.errors.InvalidArgumentError
for wrong arguments before anything is changed. Writes return their operation in
a graph, None in eager mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfembed.ops import library, private


class TableMemory(NamedTuple):
    """The keys and bytes of a table, int64 scalars."""

    size: tf.Tensor
    capacity: tf.Tensor
    index_bytes: tf.Tensor
    row_bytes: tf.Tensor


def create(
    dim: int,
    *,
    key_dtype: tf.DType = tf.int64,
    value_dtype: tf.DType = tf.float32,
    name: str = "",
    initializer: str = "constant",
    initializer_args: Sequence[float] = (0.0,),
    seed: int = 0,
    init_size: int = 0,
    admission: str = "",
    eviction: str = "",
    max_size: int = 0,
    missing_value: float | None = None,
    stochastic_rounding: bool = False,
    shared_name: str = "",
    container: str = "",
) -> tf.Tensor:
    """Makes an empty table.

    Args:
      dim: numbers per row.
      key_dtype: int64, int32 or string.
      value_dtype: the dtype of a row's numbers.
      name: the table's name in errors.
      initializer: the kind of the initial rows of missing keys: "constant",
        "vector", "uniform", "normal" or "truncated_normal".
      initializer_args: its arguments, e.g. mean and standard deviation.
      seed: the seed of initial rows, which depend only on it and the key.
      init_size: keys to make room for at once.
      admission, eviction: texts that `cc/core/policies` parses; "": no policy.
      max_size: the most keys; 0: no bound.
      missing_value: the number that missing keys read in all columns; None:
        initial rows.
      stochastic_rounding: whether trained rows of float16 or bfloat16 are
        rounded at random.
      shared_name: "" for a table that its last handle frees; else the name by
        which all sessions of this process find the same table.
      container: TensorFlow's container of named tables.

    Returns:
      A scalar tf.resource tensor.
    """
    attributes: dict[str, Any] = {
        "dim": dim,
        "initializer": initializer,
        "initializer_args": [repr(float(x)) for x in initializer_args],
        "key_dtype": key_dtype,
        "value_dtype": value_dtype,
        "init_size": init_size,
        "admission": admission,
        "eviction": eviction,
        "max_size": max_size,
        "missing_value": [] if missing_value is None else [missing_value],
        "stochastic_rounding": stochastic_rounding,
    }
    create = library.load().tfembed_table_create
    if tf.executing_eagerly() and not shared_name:
        # TensorFlow caches kernels by attribute values, and tensors by Python
        # numbers, and never frees them.
        create = library.load().tfembed_table_create_v2
        attributes |= {
            "table_name": name,
            "seed": np.array(seed, np.int64),
        }
    else:
        attributes |= {
            "table_name": name,
            "seed": seed,
            "shared_name": shared_name,
            "container": container,
        }
    handle = create(**attributes)
    if tf.executing_eagerly():
        private.set_handle_shape(handle, tf.TensorShape([0, dim]), value_dtype)
    return handle


def lookup(
    table: tf.Tensor,
    keys: tf.Tensor,
    *,
    dim: int,
    value_dtype: tf.DType = tf.float32,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (values [..., dim], exists bool [...]); inserts nothing."""
    result = library.load().tfembed_table_lookup(
        table, _keys(keys), dim=dim, Tvalue=value_dtype
    )
    return result.values, result.exists


def upsert(
    table: tf.Tensor, keys: tf.Tensor, values: tf.Tensor
) -> tf.Operation | None:
    """Writes the rows of `keys`; the last row of a repeated key wins."""
    return library.load().tfembed_table_upsert(table, _keys(keys), values)


def accum(
    table: tf.Tensor,
    keys: tf.Tensor,
    values_or_deltas: tf.Tensor,
    exists: tf.Tensor,
    old_values: tf.Tensor | None = None,
) -> tf.Operation | None:
    """Adds to present keys if `exists`; inserts missing keys if not `exists`.

    Other keys are not changed. With `old_values` it adds the difference from
    them.
    """
    old = [] if old_values is None else [old_values]
    return library.load().tfembed_table_accum(
        table, _keys(keys), values_or_deltas, exists, old
    )


def remove(table: tf.Tensor, keys: tf.Tensor) -> tf.Operation | None:
    """Removes `keys`; missing keys are ignored."""
    return library.load().tfembed_table_remove(table, _keys(keys))


def clear(tables: Sequence[tf.Tensor]) -> tf.Operation | None:
    """Removes all keys of tables on one device."""
    return library.load().tfembed_table_clear(tables)


def replace(
    tables: Sequence[tf.Tensor],
    keys: Sequence[tf.Tensor],
    rows: Sequence[tf.Tensor],
    *,
    trained: bool = False,
) -> tf.Operation | None:
    """Replaces the content of tables on one device, atomically for exports.

    Args:
      tables: the tables' handles.
      keys: the keys of each table, [...]; the last row of a repeated key wins.
      rows: the rows of each table, keys.shape + [dim], or with `trained`
        float32, keys.shape + [dim + floats of all slots].
      trained: whether the rows include slots.
    """
    return library.load().tfembed_table_replace(
        tables, keys, rows, trained=trained
    )


def size(table: tf.Tensor) -> tf.Tensor:
    """Returns the number of keys, int64 []."""
    return library.load().tfembed_table_size(table)


def seed(table: tf.Tensor) -> tf.Tensor:
    """Returns the seed of the initial rows, int64 []; a restore may set it."""
    return library.load().tfembed_table_seed(table)


def evict(table: tf.Tensor, keys: tf.Tensor) -> tf.Operation | None:
    """Removes `keys`, and counts those that the table held as evicted."""
    return library.load().tfembed_table_evict(table, _keys(keys))


def worth(
    table: tf.Tensor,
    *,
    policy: str = "",
    key_dtype: tf.DType = tf.int64,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns all keys [n] and their rows' worth, double [n], by a policy.

    Args:
      table: the table.
      policy: a text for `cc/core/policies/eviction.h`; "": the table's policy.
      key_dtype: the table's key dtype.
    """
    result = library.load().tfembed_table_worth(
        table, policy=policy, Tkey=key_dtype
    )
    return result.keys, result.worth


ALL_ROWS = 2**62  # For a survey of all rows.


class TableSurvey(NamedTuple):
    """A sample of a table's rows, and its counts; the op's doc describes them.

    Attributes:
      keys: the keys of the rows, [n].
      norms: the Euclidean norms of their values, double [n]; -1 with a NaN.
      worth: the worth by the table's eviction policy, double [n], or [0]
        without one.
      trained: whether the slots, or without slots the value, differ from a new
        row's: bool [n].
      counts: int64 [18].
    """

    keys: tf.Tensor
    norms: tf.Tensor
    worth: tf.Tensor
    trained: tf.Tensor
    counts: tf.Tensor


def survey(
    table: tf.Tensor, rows: Any, *, key_dtype: tf.DType = tf.int64
) -> TableSurvey:
    """Surveys a pseudo-random sample of the table's rows.

    Args:
      table: the table.
      rows: the approximate size of the sample, int64 [].
      key_dtype: the table's key dtype.
    """
    result = library.load().tfembed_table_survey(
        table, tf.cast(rows, tf.int64), Tkey=key_dtype
    )
    return TableSurvey(*result)


def top(
    table: tf.Tensor,
    most: Any,
    *,
    policy: str = "",
    key_dtype: tf.DType = tf.int64,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the keys [n] of the highest worth, and the worth, double [n].

    The highest worth comes first.

    Args:
      table: the table.
      most: the largest n.
      policy: as for `worth`.
      key_dtype: the table's key dtype.
    """
    result = library.load().tfembed_table_top(
        table, tf.cast(most, tf.int64), policy=policy, Tkey=key_dtype
    )
    return result.keys, result.worth


def use(table: tf.Tensor) -> tf.Tensor:
    """Returns the use counters, int64 [13], in the order of the op's doc."""
    return library.load().tfembed_table_use(table)


def stats(table: tf.Tensor) -> TableMemory:
    """Counts the keys and bytes of the table."""
    return TableMemory(
        *tf.unstack(library.load().tfembed_table_stats(table), 4)
    )


def keys(table: tf.Tensor, *, key_dtype: tf.DType = tf.int64) -> tf.Tensor:
    """Returns all keys [n], copied at one moment; copies no rows."""
    return library.load().tfembed_table_keys(table, Tkey=key_dtype)


def contains(table: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Says which of `keys` [...] are present, bool [...]; reads no rows."""
    return library.load().tfembed_table_contains(table, _keys(keys))


def import_rows(
    table: tf.Tensor, keys: tf.Tensor, full_rows: tf.Tensor
) -> tf.Operation | None:
    """Upserts rows in their memory layout, as float32 words [n, width]."""
    return library.load().tfembed_table_import(table, _keys(keys), full_rows)


def import_waiting(
    table: tf.Tensor, keys: tf.Tensor, seen: tf.Tensor
) -> tf.Operation | None:
    """Adds `keys` [n] that wait for admission; `seen` int32 [n]: steps."""
    return library.load().tfembed_table_import_waiting(table, _keys(keys), seen)


def lookup_trained(
    table: tf.Tensor,
    keys: tf.Tensor,
    *,
    width: int,
    owner: str = "",
    slot_names: Sequence[str] = (),
) -> tf.Tensor:
    """Returns values and slots, float32 [..., dim + floats of all slots].

    Args:
      table: the table's handle.
      keys: keys of any shape.
      width: dim + floats of all slots.
      owner: the update rule whose slots the rows have; "" for any rule.
      slot_names: the rule's slots.

    Raises:
      tf.errors.FailedPreconditionError: the rows have another width, or the
        slots of another rule.
    """
    return library.load().tfembed_table_lookup_trained(
        table,
        _keys(keys),
        width=width,
        owner=owner,
        slot_names=list(slot_names),
    )


def write_trained(
    table: tf.Tensor,
    keys: tf.Tensor,
    rows: tf.Tensor,
    *,
    add: bool = False,
    owner: str = "",
    slot_names: Sequence[str] = (),
) -> tf.Operation | None:
    """Writes values and slots of `keys`, or adds to them.

    The arguments and errors are those of `lookup_trained`, and of `upsert`.
    """
    return library.load().tfembed_table_write_trained(
        table,
        _keys(keys),
        rows,
        add=add,
        owner=owner,
        slot_names=list(slot_names),
    )


class TableSnapshot(NamedTuple):
    """A copy of the shards of a table at one moment.

    Attributes:
      keys: [n], shard after shard.
      values: [n, dim].
      slots: float32 [n, floats of all slots].
      notes: int64 [n], the eviction policy's note of each row; [0] without
        notes.
      waiting: [m], keys that wait for admission.
      seen: int32 [m], the number of steps that saw each waiting key.
      counters: uint8 [blocks of all shards, bytes], the shared counters of an
        admission policy.
      kinds: string [2], the kinds of notes and of counters; "" without them.
    """

    keys: tf.Tensor
    values: tf.Tensor
    slots: tf.Tensor
    notes: tf.Tensor
    waiting: tf.Tensor
    seen: tf.Tensor
    counters: tf.Tensor
    kinds: tf.Tensor


def snapshot(
    tables: Sequence[tf.Tensor],
    *,
    key_dtype: tf.DType = tf.int64,
    value_dtype: tf.DType = tf.float32,
    only_rows: bool = False,
) -> TableSnapshot:
    """Copies the content of a table's shards at one moment.

    Args:
      tables: the handles of the shards, on one device.
      key_dtype, value_dtype: the table's dtypes.
      only_rows: whether to leave out the notes of policies.

    Raises:
      tf.errors.InvalidArgumentError: other dtypes, or handles of tables that
        differ.
    """
    return TableSnapshot(
        *library.load().tfembed_table_snapshot(
            tables, only_rows=only_rows, Tkey=key_dtype, Tvalue=value_dtype
        )
    )


def import_notes(
    table: tf.Tensor, keys: tf.Tensor, notes: tf.Tensor, kind: tf.Tensor
) -> tf.Operation | None:
    """Sets the notes [n] of the rows of `keys` [n]; ignores another `kind`."""
    return library.load().tfembed_table_import_notes(table, keys, notes, kind)


def import_counters(
    table: tf.Tensor, counters: tf.Tensor, kind: tf.Tensor
) -> tf.Operation | None:
    """Sets the shared counters; ignores another `kind` or shape."""
    return library.load().tfembed_table_import_counters(table, counters, kind)


def set_slots(
    table: tf.Tensor,
    *,
    owner: str,
    names: Sequence[str],
    initial_values: Sequence[float],
    row_wise: Sequence[int] = (),
) -> tf.Operation | None:
    """Adds the slots of the update rule `owner` to every row.

    Args:
      table: a handle of `create`.
      owner: the rule's name.
      names: the names of its slots.
      initial_values: one per slot.
      row_wise: the indices of the slots that have one float per row.
    """
    return library.load().tfembed_table_set_slots(
        table,
        owner=owner,
        names=list(names),
        initial_values=list(initial_values),
        row_wise=list(row_wise),
    )


def drop_slots(table: tf.Tensor) -> tf.Operation | None:
    """Takes the slots out of every row; another rule may lay out its own."""
    return library.load().tfembed_table_drop_slots(table)


def _keys(keys: tf.Tensor) -> tf.Tensor:
    """Converts integers of Python and NumPy to int64 tensors."""
    if isinstance(keys, tf.Tensor):
        return keys
    return tf.convert_to_tensor(keys, dtype_hint=tf.int64)


for _op in (
    "TableContains",
    "TableKeys",
    "TableLookup",
    "TableLookupTrained",
    "TableSeed",
    "TableSize",
    "TableStats",
    "TableSnapshot",
    "TableUse",
    "TableWorth",
):
    private.register_read_only(f"Tfembed>{_op}")
