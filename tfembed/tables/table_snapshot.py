"""All shards of a table in tensors, as of one moment."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfembed.ops import snapshot as snapshot_ops
from tfembed.tables.devices import place
from tfembed.tables.table_shard import TableShard

__all__ = ["TableContent", "take"]


class TableContent(NamedTuple):
    """What a table held; a second copy of it.

    Attributes:
      columns: keys [n], values [n, dim], and the rows of each slot,
        [n, dim or 1]; shard after shard.
      notes: what its policies noted, as the last attributes of
        `tfembed.ops.snapshot.TableSnapshot`, from `notes` on.
    """

    columns: list[tf.Tensor]
    notes: list[tf.Tensor]


def take(
    table: Any, shards: Sequence[TableShard], *, only_rows: bool = False
) -> TableContent:
    """Copies `shards` of a `TrainedTable`, all of one moment.

    A kernel sees the shards of its own device alone. Where they lie on several,
    as on parameter servers, those that follow one another on one device are of
    one moment.

    Args:
      table: their table.
      shards: what is copied.
      only_rows: whether to leave the policies' notes out: they are empty then.
    """
    with tf.control_dependencies(table.lay_out_slots()):
        taken = [
            snapshot_ops.take(
                [shard.resource_handle for shard in together],
                key_dtype=table.key_dtype,
                value_dtype=table.value_dtype,
                only_rows=only_rows,
            )
            for _, together in itertools.groupby(
                shards, key=lambda shard: place(shard.resource_handle.device)
            )
        ]
    whole = taken[0]
    if len(taken) > 1:
        *parts, kinds = zip(*taken, strict=True)
        whole = snapshot_ops.TableSnapshot._make(
            [*(tf.concat(part, 0) for part in parts), kinds[0]]
        )
    keys, values, slots, *notes = whole
    columns = [keys, values]
    if table.slot_names:
        columns += tf.split(slots, table.slot_widths, 1)
    return TableContent(columns, notes)
