"""Views of an optimizer's slots as variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfembed import errors
from tfembed.checkpoint.row_files import FileStem
from tfembed.dynamic_embedding.variables import arguments
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.dynamic_embedding.variables.variable_shard import VariableShard

if TYPE_CHECKING:
    pass


__all__ = [
    "SlotShard",
    "SlotVariable",
    "TableSlot",
    "create_slots",
    "slot_called",
    "slots_of",
]


class SlotShard(tf.__internal__.tracking.Trackable):
    """A view of one shard of a slot; `SlotVariable.tables` lists them.

    A Saver of tf.compat.v1 that is given the view saves the variable with all
    slots.

    Attributes:
      name: `<slot>_mht_<shard, from 1>of<shards>`.
      key_dtype, value_dtype: the slot's dtypes.
      dim: width of a row.
      device: the shard's device.
      resource_handle: the handle of the table whose rows have the slot.

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
        """Returns the number of keys in the shard, int64 []."""
        return self._shard.size(name)

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the shard's keys [n] and the slot's rows [n, dim]."""
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
        """Looks up as `CuckooHashTable`; other shards' keys are missing."""
        with tf.name_scope(name or "lookup"):
            keys = arguments.key_tensor(keys, self)
            rows = self._slot.rows_of(keys, self._index)
            _, exists = self._shard.lookup(keys, return_exists=True)
            rows = arguments.with_defaults(rows, exists, dynamic_default_values)
            return (rows, exists) if return_exists else rows

    def insert(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Writes rows by `SlotVariable.upsert`."""
        return self._slot.upsert(keys, values, name)

    def remove(self, keys: Any, name: str | None = None) -> None:
        """Raises UnsupportedError: a slot is removed with its row."""
        self._slot.remove(keys, name)

    def clear(self, name: str | None = None) -> None:
        """Slots go with their rows: raises UnsupportedError."""
        self._slot.clear(name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} '{self.name}' of {self._slot!r}>"


class SlotVariable:
    """A view of one slot, which is a part of the rows of its `Variable`.

    It has exactly the variable's keys, after a restore, `restrict` or `remove`
    too, and takes no memory. A checkpoint has it beside the variable's rows,
    under `<variable's table>/.ATTRIBUTES/slots/<slot_name>`.

    Attributes:
      params: the `Variable`.
      slot_name: the table's name of the slot.
      name: `<variable>/<optimizer>/<slot>`, with the optimizer's name of the
        slot; `<variable>/<slot>` if the variable has short file names.
      trainable: False.
    """

    trainable = False

    def __init__(self, params: Variable, slot_name: str, *, name: str) -> None:
        self.params = params
        self.slot_name = slot_name
        self.name = name

    @property
    def dim(self) -> int:
        """Width of the slot's rows: that of the variable, or 1."""
        return self._widths[self._place]

    @property
    def key_dtype(self) -> tf.DType:
        """The variable's key dtype."""
        return self.params.key_dtype

    @property
    def value_dtype(self) -> tf.DType:
        """float32."""
        return tf.float32

    @property
    def devices(self) -> Any:
        """The variable's devices."""
        return self.params.devices

    @property
    def shard_num(self) -> int:
        """The variable's number of shards."""
        return self.params.shard_num

    @property
    def tables(self) -> tuple[SlotShard, ...]:
        """Views of the slot's shards, for Savers too."""
        return tuple(SlotShard(self, i) for i in range(self.shard_num))

    def lookup(
        self, keys: Any, return_exists: bool = False, name: str | None = None
    ) -> Any:
        """Returns the slot's rows, keys.shape + [dim], as `Variable.lookup`.

        A missing key has the slot's initial value.
        """
        with tf.name_scope(name or "lookup"):
            keys = arguments.key_tensor(keys, self.params)
            rows = self.rows_of(keys)
            if not return_exists:
                return rows
            return rows, self.params.lookup(keys, return_exists=True)[1]

    def rows_of(self, keys: tf.Tensor, shard: int | None = None) -> tf.Tensor:
        """Returns the slot's rows of one shard or all; for `SlotShard`."""
        full_rows = self.params.table.lookup_trained(keys, shard)
        return self._columns(full_rows)[self._place]

    def upsert(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Writes the slot's rows of `keys`, as `Variable.upsert`.

        A missing key is inserted with its initial row. No other thread may
        write these keys at the same time.
        """
        with tf.name_scope(name or "upsert"):
            keys = arguments.key_tensor(keys, self.params)
            values = tf.convert_to_tensor(values, tf.float32)
            arguments.check_value_shape(keys, values, self.dim)
            keys = tf.reshape(keys, [-1])
            columns = self._columns(self.params.table.lookup_trained(keys))
            columns[self._place] = tf.reshape(values, [-1, self.dim])
            rows = tf.concat(columns, 1)
            return self.params.table.write_trained(keys, rows)

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys [n] and the slot's rows [n, dim]."""
        with tf.name_scope(name or "export"):
            keys, slots = self.params.table.export_slots()
            return keys, slots[self.slot_name]

    def size(
        self, index: int | None = None, name: str | None = None
    ) -> tf.Tensor:
        """Returns the variable's size."""
        return self.params.size(index, name)

    def remove(self, keys: Any, name: str | None = None) -> None:
        """Raises UnsupportedError: a slot is removed with its row."""
        del keys, name
        self._refuse("remove")

    def clear(self, name: str | None = None) -> None:
        """Slots go with their rows: raises UnsupportedError."""
        del name
        self._refuse("clear")

    def __repr__(self) -> str:
        return f"SlotVariable({self.name!r}, dim={self.dim})"

    def _refuse(self, method: str) -> None:
        raise errors.UnsupportedError(
            f"`{method}` of slot '{self.name}' alone is not possible: it lies "
            f"in the rows of '{self.params.name}'. Call the variable's, or "
            "`upsert` the slot's initial value."
        )

    @property
    def _place(self) -> int:
        return 1 + self.params.table.slot_names.index(self.slot_name)

    @property
    def _widths(self) -> list[int]:
        return [self.params.dim, *self.params.table.slot_widths]

    def _columns(self, full_rows: tf.Tensor) -> list[tf.Tensor]:
        return list(tf.split(full_rows, self._widths, axis=-1))


@dataclasses.dataclass(frozen=True, eq=False)
class TableSlot:
    """A table's slot in the form that `get_slot` of TFRA's optimizers returns.

    Attributes:
      params: a view of the slot.
    """

    params: SlotVariable


def slot_called(
    optimizer: Any, params: Variable, name: str
) -> TableSlot | None:
    """Returns the slot that a `TableOptimizer` calls `name`, or None."""
    slots = zip(
        optimizer.slot_labels(), optimizer.slots_of(params), strict=False
    )
    return next((TableSlot(s) for label, s in slots if label == name), None)


def slots_of(
    params: Variable, optimizer: str, labels: Sequence[str] = ()
) -> list[SlotVariable]:
    """Returns views of all slots of `params`, in their order in the row.

    Args:
      params: a variable with an optimizer.
      optimizer: the optimizer's name.
      labels: the optimizer's names of the slots; (): the table's names.
    """
    names = params.table.slot_names
    return [
        SlotVariable(params, slot, name=_slot_name(params, optimizer, label))
        for slot, label in zip(names, labels or names, strict=True)
    ]


def create_slots(
    variable: Variable, init: Any, slot_name: str, op_name: str, bp_v2: bool
) -> Variable:
    """Makes a variable that follows `variable`, for users' own update rules.

    The optimizers of tfembed need none: their slots are parts of the rows.

    Args:
      variable: the variable to make a slot for.
      init: the initializer of its rows.
      slot_name: the name of the slot.
      op_name: the name of the optimizer.
      bp_v2: as for `Variable`.

    Returns:
      A `Variable` of the same dtypes, width, shards and initial size, not
      trainable, called `<variable>/<op_name>/<slot_name>`. A key that is
      removed from `variable` in any way is removed from it too.
    """
    slot = Variable(
        key_dtype=variable.key_dtype,
        value_dtype=variable.value_dtype,
        dim=variable.dim,
        devices=variable.devices,
        partitioner=variable.partition_fn,
        name=_slot_name(variable, op_name, slot_name),
        initializer=init,
        trainable=False,
        checkpoint=variable.checkpoint,
        init_size=variable.init_size,
        kv_creator=variable.kv_creator,
        bp_v2=bp_v2,
        short_file_name=variable.short_file_name,
    )
    variable.table.let_follow(slot.table)
    return slot


def _slot_name(params: Variable, optimizer: str, slot: str) -> str:
    if params.short_file_name:
        return f"{params.name}/{slot}"
    return f"{params.name}/{optimizer}/{slot}"
