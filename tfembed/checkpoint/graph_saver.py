"""Hash tables in graphs of TensorFlow 1, under `tf.compat.v1.train.Saver`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.checkpoint import private
from tfembed.tables import HashTable

__all__ = ["TableSaveable", "add_to_savers", "saveables"]


class TableSaveable(private.SaveableObject):
    """A table as the two tensors of one save, whatever its number of shards.

    They are called `<name>_mht_1of1-keys` [n] and `-values` [n, dim], as
    TensorFlow Recommenders Addons calls those of a variable with one shard. A
    Saver writes tensors, so it takes a copy of the table in memory;
    `tf.train.Checkpoint` in eager mode does not. Rows of a table with
    `Expiry(at_checkpoints=True)` expire in each run of a save, in the table too.

    Args:
      table: it lives in the current graph.
      name: what the tensors' names begin with; None: as above.
    """

    def __init__(self, table: HashTable, name: str | None = None) -> None:
        self._table = table
        # An op of the graph's has it: meta graphs write collections by name.
        own_name = name or table.handle.op.name
        name = name or f"{table.name.replace('/', '_')}_mht_1of1"
        device = table.shards[0].device
        dtypes = {"keys": table.key_dtype, "values": table.value_dtype}
        specs = [
            private.SaveSpec(
                functools.partial(self._exported, i),
                "",
                f"{name}-{tensor}",
                dtype=dtype,
                device=device,
            )
            for i, (tensor, dtype) in enumerate(dtypes.items())
        ]
        super().__init__(table.handle, specs, own_name)

    @property
    def table(self) -> HashTable:
        """What is saved."""
        return self._table

    def restore(
        self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Any
    ) -> tf.Operation:
        """Replaces the content, once it is known to fit."""
        del restored_shapes
        table = self._table
        keys, values = restored_tensors
        shape = [tf.size(keys), table.dim]
        text = (
            f"Saved rows of table '{table.name}' do not fit width {table.dim}"
        )
        check = tf.debugging.assert_equal(tf.shape(values), shape, text)
        with tf.control_dependencies([check]):
            cleared = table.clear()
        with tf.control_dependencies([cleared]):
            # What a graph restores has no static shape.
            keys = tf.reshape(keys, [-1])
            return table.upsert(keys, tf.reshape(values, [-1, table.dim]))

    @functools.cached_property
    def _export(self) -> tuple[tf.Tensor, tf.Tensor]:
        # One op, so that keys and values are of one moment.
        if self._table.slot_names:
            raise errors.UnsupportedError(
                f"Table '{self._table.name}' has the slots of an optimizer, "
                "which savers in a graph do not save. Save the rows with "
                "`save_to_file_system`, or train and save in eager mode: "
                "tf.train.Checkpoint saves slots there."
            )
        expiry = self._table.expiry
        expired = []
        if expiry is not None and expiry.at_checkpoints:
            expired.append(self._table.expire(expiry.limit).keys)
        with tf.control_dependencies(expired):
            return self._table.export()

    def _exported(self, i: int) -> tf.Tensor:
        return self._export[i]


def add_to_savers(table: HashTable) -> TableSaveable | None:
    """Has the savers of the current graph save `table`; None in eager mode."""
    with tf.init_scope():
        if tf.executing_eagerly():
            return None
        saveable = table.saveable = TableSaveable(table)
        tf.compat.v1.add_to_collection(
            tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS, saveable
        )
        return saveable


def saveables(
    saveable: TableSaveable,
) -> dict[str, Callable[..., TableSaveable]]:
    """What TensorFlow asks an object of a graph for, to save it.

    A Saver that is given the object calls the function without arguments;
    `tf.train.Checkpoint` gives the tensors' name.
    """

    def make(name: str = "", **kwargs: Any) -> TableSaveable:
        del kwargs  # For functions that save asynchronously.
        return TableSaveable(saveable.table, name) if name else saveable

    return {"table": make}
