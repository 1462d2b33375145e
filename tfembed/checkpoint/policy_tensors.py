"""The notes of a table's policies, as tensors beside its keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfembed.ops import checkpoint as checkpoint_ops
from tfembed.ops import table as table_ops
from tfembed.tables import HashTable, hash_table

__all__ = ["assert_fit", "dtypes", "export", "restore"]


def dtypes(table: HashTable) -> dict[str, tf.DType]:
    """The dtypes of the tensors of `table`, by name; none without a policy."""
    if table.admission is None and table.eviction is None:
        return {}
    return {
        "notes": tf.int64,
        "waiting/keys": table.key_dtype,
        "waiting/seen": tf.int32,
        "waiting/counters": tf.uint8,
        "policies": tf.string,
    }


def export(table: HashTable) -> list[tf.Tensor]:
    """As `HashTable.export_columns`, and the tensors of `dtypes`.

    All are of one moment, as `ops.table.snapshot` says.
    """
    if not dtypes(table):
        return table.export_columns()
    columns, notes = hash_table.take(table, table.shards)
    return [*columns, *notes]


def assert_fit(
    table: HashTable, keys: tf.Tensor, tensors: Sequence[tf.Tensor]
) -> list[tf.Operation]:
    """Makes checks that fail where tensors of `export` do not fit `keys` [n].

    Each of them may be missing: it is [0] then.
    """
    if not tensors:
        return []
    notes, waiting, seen, *_ = tensors
    return [
        tf.debugging.assert_equal(
            tf.logical_or(
                tf.equal(tf.size(notes), 0),
                tf.equal(tf.size(notes), tf.size(keys)),
            ),
            True,
            f"The saved notes of table '{table.name}' are not one a row",
        ),
        tf.debugging.assert_equal(
            tf.size(waiting),
            tf.size(seen),
            f"The saved keys that wait for admission to table '{table.name}' "
            "are not as many as their counts",
        ),
        checkpoint_ops.check_distinct(waiting, table_name=table.name),
    ]


def restore(
    table: HashTable, keys: tf.Tensor, tensors: Sequence[tf.Tensor]
) -> list[tf.Operation]:
    """Has `table`, which holds `keys` [n] and counts nothing, note all that.

    Counters go on in as many shards as they were saved from; notes and counters
    of another kind than the table's are left out.
    """
    if not tensors:
        return []
    notes, waiting, seen, counters, kinds = tensors
    notes, waiting, seen = (
        tf.reshape(tensor, [-1]) for tensor in (notes, waiting, seen)
    )
    # Where there are none, neither is what they would be of.
    notes_kind, counters_kind = tf.unstack(
        tf.concat([tf.reshape(kinds, [-1]), ["", ""]], 0)[:2], 2
    )
    noted = keys[: tf.size(notes)]
    parts = table.partition(noted)
    done = [
        table_ops.import_notes(*shard, notes_kind)
        for shard in zip(
            table.handles, parts.split(noted), parts.split(notes), strict=True
        )
    ]
    parts = table.partition(waiting)
    done += [
        table_ops.import_waiting(*shard)
        for shard in zip(
            table.handles, parts.split(waiting), parts.split(seen), strict=True
        )
    ]
    # With another number of shards none has the shape of the table's own.
    blocks = tf.shape(counters)[0] // len(table.handles)
    done += [
        table_ops.import_counters(
            handle, counters[i * blocks : (i + 1) * blocks], counters_kind
        )
        for i, handle in enumerate(table.handles)
    ]
    return done
