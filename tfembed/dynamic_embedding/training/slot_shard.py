"""One shard of a slot, with those of TFRA's methods that a slot can have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfembed.checkpoint.row_files import FileStem
from tfembed.dynamic_embedding.variables import arguments
from tfembed.dynamic_embedding.variables.variable_shard import VariableShard

if TYPE_CHECKING:
    from tfembed.dynamic_embedding.training.slot_variable import SlotVariable

__all__ = ["SlotShard"]


class SlotShard(tf.__internal__.tracking.Trackable):
    """A view of one shard of a slot: what `SlotVariable.tables` lists.

    A Saver of tf.compat.v1 that is given it saves the variable, with all slots.

    Attributes:
      name: `<slot>_mht_<shard, from 1>of<shards>`.
      key_dtype, value_dtype: the slot's.
      dim: width of a row.
      device: where the shard is.
      resource_handle: of the table whose rows the slot lies in.

    Args:
      slot: the `SlotVariable`.
      index: the shard, from 0.
    """

    def __init__(self, slot: SlotVariable, index: int) -> None:
        shard = VariableShard(slot.params, index)
        self.name = FileStem(slot.name, slot.shard_num, shard=index).of_shard
        self.key_dtype = slot.key_dtype
        self.value_dtype = slot.value_dtype
        self.dim = slot.dim
        self.device = shard.device
        self.resource_handle = shard.resource_handle
        self._shard = shard
        self._slot = slot
        self._index = index
        # For the Savers of a graph.
        self._shared_name = self.name
        self._gather_saveables_for_checkpoint = (
            shard._gather_saveables_for_checkpoint
        )

    def size(self, name: str | None = None) -> tf.Tensor:
        """The number of keys in the shard, int64 []."""
        return self._shard.size(name)

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """The shard's keys [n] and the slot's rows [n, dim]."""
        with tf.name_scope(name or "export"):
            table = self._slot.params.table
            keys, slots = table.export_slots(self._index)
            return keys, slots[self._slot.slot_name]

    def lookup(
        self,
        keys: Any,
        dynamic_default_values: Any = None,
        return_exists: bool = False,
        name: str | None = None,
    ) -> Any:
        """`CuckooHashTable.lookup`; keys of other shards are not there."""
        with tf.name_scope(name or "lookup"):
            keys = arguments.key_tensor(keys, self)
            rows = self._slot.rows_of(keys, self._index)
            _, exists = self._shard.lookup(keys, return_exists=True)
            rows = arguments.with_defaults(rows, exists, dynamic_default_values)
            return (rows, exists) if return_exists else rows

    def insert(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """`SlotVariable.upsert`."""
        return self._slot.upsert(keys, values, name)

    def remove(self, keys: Any, name: str | None = None) -> None:
        """A slot goes with its row: raises UnsupportedError."""
        self._slot.remove(keys, name)

    def clear(self, name: str | None = None) -> None:
        """Slots go with their rows: raises UnsupportedError."""
        self._slot.clear(name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} '{self.name}' of {self._slot!r}>"
