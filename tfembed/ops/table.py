"""Ops on one shard of a table: convert, call.

`table` is a resource handle of `create`. Keys have any shape [...], rows are
[..., dim], both of the table's dtypes. Faults that only the op can see raise
tf.errors.InvalidArgumentError before anything is changed. Writes return their
operation in a graph, None in eager mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfembed.ops import library, private


class TableMemory(NamedTuple):
    """int64 scalars: what a table holds and takes."""

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
    """A handle of an empty table.

    Args:
      dim: numbers per row.
      key_dtype: int64, int32 or string.
      value_dtype: what a row's numbers are.
      name: the table's name in errors.
      initializer: the kind of the rows that missing keys have: "constant",
        "vector", "uniform", "normal" or "truncated_normal".
      initializer_args: its arguments, e.g. mean and standard deviation.
      seed: with a key, all that its initial row depends on.
      init_size: keys to make room for at once.
      admission, eviction: policies, as `cc/core/policies` reads them; "": none.
      max_size: keys that are never exceeded; 0: no bound.
      missing_value: what missing keys read in all columns; None: initial rows.
      stochastic_rounding: whether trained rows of float16 or bfloat16 are
        rounded by chance.
      shared_name: "" for a table that goes with its last handle; else the name
        under which all sessions of this process find the same table.
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
        # TensorFlow keeps something for each value of an attribute, and for each
        # number of Python's.
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
    """(values [..., dim], exists bool [...]); a missing key's initial row."""
    result = library.load().tfembed_table_lookup(
        table, _keys(keys), dim=dim, Tvalue=value_dtype
    )
    return result.values, result.exists


def upsert(
    table: tf.Tensor, keys: tf.Tensor, values: tf.Tensor
) -> tf.Operation | None:
    """Writes the rows of `keys`; of a repeated key the last one stays."""
    return library.load().tfembed_table_upsert(table, _keys(keys), values)


def accum(
    table: tf.Tensor,
    keys: tf.Tensor,
    values_or_deltas: tf.Tensor,
    exists: tf.Tensor,
    old_values: tf.Tensor | None = None,
) -> tf.Operation | None:
    """Adds where `exists` and the key is there; inserts where neither.

    With `old_values` it adds the difference from those.
    """
    old = [] if old_values is None else [old_values]
    return library.load().tfembed_table_accum(
        table, _keys(keys), values_or_deltas, exists, old
    )


def remove(table: tf.Tensor, keys: tf.Tensor) -> tf.Operation | None:
    """Removes `keys`; those that are not there are ignored."""
    return library.load().tfembed_table_remove(table, _keys(keys))


def clear(tables: Sequence[tf.Tensor]) -> tf.Operation | None:
    """Removes all keys of tables that lie on one device."""
    return library.load().tfembed_table_clear(tables)


def replace(
    tables: Sequence[tf.Tensor],
    keys: Sequence[tf.Tensor],
    rows: Sequence[tf.Tensor],
    *,
    trained: bool = False,
) -> tf.Operation | None:
    """Has each of the tables, on one device, hold these rows and no others.

    Exports show all of them before or after.

    Args:
      tables: handles.
      keys: the keys of each table, [...]; of a repeated key the last one stays.
      rows: the rows of each table, keys.shape + [dim], or with `trained` float32,
        keys.shape + [dim + floats of all slots].
      trained: whether slots are in the rows.
    """
    return library.load().tfembed_table_replace(
        tables, keys, rows, trained=trained
    )


def size(table: tf.Tensor) -> tf.Tensor:
    """The number of keys, int64 []."""
    return library.load().tfembed_table_size(table)


def seed(table: tf.Tensor) -> tf.Tensor:
    """The seed of the initial rows, int64 []: a restore may bring another."""
    return library.load().tfembed_table_seed(table)


def evict(table: tf.Tensor, keys: tf.Tensor) -> tf.Operation | None:
    """Removes `keys`, and counts those that were there as evicted."""
    return library.load().tfembed_table_evict(table, _keys(keys))


def worth(
    table: tf.Tensor,
    *,
    policy: str = "",
    key_dtype: tf.DType = tf.int64,
) -> tuple[tf.Tensor, tf.Tensor]:
    """All keys [n] and their rows' worth double [n], by a policy.

    Args:
      table: the table.
      policy: as `cc/core/policies/eviction.h` reads it; "": the table's.
      key_dtype: the table's.
    """
    result = library.load().tfembed_table_worth(
        table, policy=policy, Tkey=key_dtype
    )
    return result.keys, result.worth


ALL_ROWS = 2**62  # For a survey that leaves none out.


class TableSurvey(NamedTuple):
    """Some rows of a table, and its counts; the op tells more of each.

    Attributes:
      keys: the keys of the rows, [n].
      norms: the norms of their values, double [n].
      worth: the worth by the table's eviction policy, double [n], or [0] without
        one.
      trained: whether training, or another write, changed the row: bool [n].
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
    """Looks at about so many rows of the table, picked as if by chance.

    Args:
      table: the table.
      rows: how many, int64 [].
      key_dtype: the table's.
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
    """The keys [n] of the highest worth, and that double [n], highest first.

    Args:
      table: the table.
      most: n, or all there are.
      policy: as for `worth`.
      key_dtype: the table's.
    """
    result = library.load().tfembed_table_top(
        table, tf.cast(most, tf.int64), policy=policy, Tkey=key_dtype
    )
    return result.keys, result.worth


def use(table: tf.Tensor) -> tf.Tensor:
    """How the table was used, int64 [13]; the op tells the order."""
    return library.load().tfembed_table_use(table)


def stats(table: tf.Tensor) -> TableMemory:
    """Counts the keys and bytes of the table."""
    return TableMemory(
        *tf.unstack(library.load().tfembed_table_stats(table), 4)
    )


def keys(table: tf.Tensor, *, key_dtype: tf.DType = tf.int64) -> tf.Tensor:
    """All keys [n] of one moment; no row is copied."""
    return library.load().tfembed_table_keys(table, Tkey=key_dtype)


def contains(table: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Which of `keys` [...] are there, bool [...]; no row is read."""
    return library.load().tfembed_table_contains(table, _keys(keys))


def import_rows(
    table: tf.Tensor, keys: tf.Tensor, full_rows: tf.Tensor
) -> tf.Operation | None:
    """Upserts rows as they lie in memory, in words: float32 [n, width]."""
    return library.load().tfembed_table_import(table, _keys(keys), full_rows)


def import_waiting(
    table: tf.Tensor, keys: tf.Tensor, seen: tf.Tensor
) -> tf.Operation | None:
    """Has `keys` [n] wait for admission, as seen in `seen` (int32 [n]) steps."""
    return library.load().tfembed_table_import_waiting(table, _keys(keys), seen)


def lookup_trained(
    table: tf.Tensor, keys: tf.Tensor, *, width: int
) -> tf.Tensor:
    """Value and slots as floats, [..., width = dim + floats of all slots]."""
    return library.load().tfembed_table_lookup_trained(
        table, _keys(keys), width=width
    )


def write_trained(
    table: tf.Tensor, keys: tf.Tensor, rows: tf.Tensor, *, add: bool = False
) -> tf.Operation | None:
    """Writes value and slots of `keys`, or adds to them."""
    return library.load().tfembed_table_write_trained(
        table, _keys(keys), rows, add=add
    )


class TableSnapshot(NamedTuple):
    """The shards of a table as of one moment.

    Attributes:
      keys: [n], shard after shard.
      values: [n, dim].
      slots: float32 [n, floats of all slots].
      notes: int64 [n], what the eviction policy noted of each row; [0] where it
        notes nothing.
      waiting: [m], keys that wait for admission.
      seen: int32 [m], in how many steps each of them was seen.
      counters: uint8 [blocks of all shards, bytes], of an admission whose keys
        share some.
      kinds: string [2], what notes and counters mean; "" where there are none.
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
    """All that the shards of a table hold, of one moment all together.

    Args:
      tables: the handles of the shards, which lie on one device.
      key_dtype, value_dtype: the table's.
      only_rows: whether to leave what policies noted out.

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
    """Notes `notes` [n] of the rows of `keys` [n]; nothing of another `kind`."""
    return library.load().tfembed_table_import_notes(table, keys, notes, kind)


def import_counters(
    table: tf.Tensor, counters: tf.Tensor, kind: tf.Tensor
) -> tf.Operation | None:
    """Takes `counters` over; not those of another `kind` or shape."""
    return library.load().tfembed_table_import_counters(table, counters, kind)


def set_slots(
    table: tf.Tensor,
    *,
    owner: str,
    names: Sequence[str],
    initial_values: Sequence[float],
    row_wise: Sequence[int] = (),
) -> tf.Operation | None:
    """Lays the slots of the update rule `owner` out in every row.

    Args:
      table: a handle of `create`.
      owner: the rule's name.
      names: the names of its slots.
      initial_values: one per slot.
      row_wise: the indices of the slots that are one float a row.
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
    """Tensors as they are; Python's and NumPy's integers as int64."""
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
