"""Ops that bring shards and all that policies noted into tensors: convert, call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfembed.ops import library, private


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


def take(
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


private.register_read_only("Tfembed>TableSnapshot")
