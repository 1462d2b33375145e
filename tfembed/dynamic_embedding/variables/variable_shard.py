"""One shard of a `Variable`, with the methods of TFRA's tables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.checkpoint.row_files import FileStem
from tfembed.dynamic_embedding.variables import arguments, table_files
from tfembed.ops import private
from tfembed.ops import table as table_ops
from tfembed.tables.sharded_table import not_in_savers

__all__ = ["VariableShard"]


class VariableShard(tf.__internal__.tracking.Trackable):
    """A view of one shard; `Variable.tables` lists them.

    Written rows go to the shard that the variable's partitioner chooses, so
    that lookups find them; removed keys lose their slots and status too.

    Attributes:
      name: `<variable>_mht_<shard, from 1>of<shards>`, the name of its raw
        files.
      key_dtype, value_dtype: the variable's dtypes.
      dim: width of a row.
      device: the shard's device.
      resource_handle: the handle of its table.

    Args:
      variable: the `Variable`.
      index: the shard, from 0.
    """

    def __init__(self, variable: Any, index: int) -> None:
        shard = variable.table.shards[index]
        self.name = FileStem(
            variable.name, variable.shard_num, shard=index
        ).of_shard
        self.key_dtype = variable.key_dtype
        self.value_dtype = variable.value_dtype
        self.dim = variable.dim
        self.device = shard.device
        self.resource_handle = shard.resource_handle
        self._variable = variable
        self._index = index
        # For the Savers of a graph.
        self._shared_name = self.name

    @property
    def handles(self) -> tuple[tf.Tensor]:
        """The shard's handle in a tuple; a table has one per shard."""
        return (self.resource_handle,)

    @property
    def file_owner(self) -> str:
        """The id of the variable's table, for row files."""
        return str(self._variable.table.file_owner)

    def size(self, name: str | None = None) -> tf.Tensor:
        """Returns the number of keys in the shard, int64 []."""
        return self._variable.size(self._index, name)

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the shard's keys [n] and rows [n, dim]."""
        with tf.name_scope(name or "export"):
            keys, values, *_ = self._variable.table.export_columns(self._index)
            return keys, values

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
            values, exists = self._read(keys)
            if dynamic_default_values is None and not self._has_strings:
                table = self._variable.table
                values = table.with_drawn_rows(keys, values, exists)
            values = arguments.with_defaults(
                values, exists, dynamic_default_values
            )
            return (values, exists) if return_exists else values

    def insert(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Calls `Variable.upsert`."""
        return self._variable.upsert(keys, values, name)

    def accum(
        self,
        keys: Any,
        values_or_deltas: Any,
        exists: Any,
        name: str | None = None,
    ) -> Any:
        """Adds differences if `exists`, else inserts rows: `Variable.accum`."""
        with tf.name_scope(name or "accum"):
            arguments.check_addition(self._variable)
            keys = arguments.key_tensor(keys, self._variable)
            values = arguments.value_tensor(values_or_deltas, self._variable)
            arguments.check_value_shape(keys, values, self.dim)
            return self._variable.table.accum(keys, values, exists)

    def remove(self, keys: Any, name: str | None = None) -> Any:
        """Removes those of `keys`, of any shape, that are in the shard."""
        with tf.name_scope(name or "remove"):
            keys = arguments.key_tensor(keys, self, errors.DtypeError)
            _, is_here = self.lookup(keys, return_exists=True)
            return self._variable.remove(tf.boolean_mask(keys, is_here))

    def clear(self, name: str | None = None) -> Any:
        """Removes the shard's keys."""
        with tf.name_scope(name or "clear"):
            return self._variable.remove(self.export()[0])

    def save_to_file_system(
        self,
        dirpath: Any,
        file_name: str | None = None,
        dirpath_env: str | None = "TFRA_SAVED_KV",
        append_to_file: bool = False,
        buffer_size: int = table_files.BUFFER_SIZE,
        name: str | None = None,
    ) -> Any:
        """Writes the shard's rows as `CuckooHashTable.save_to_file_system`."""
        self._variable._check_has_raw_form()
        return table_files.save(
            self,
            table_files.folder(dirpath, dirpath_env),
            [file_name or self.name],
            append=append_to_file,
            buffer_size=buffer_size,
            name=name,
        )

    def load_from_file_system(
        self,
        dirpath: Any,
        file_name: str | None = None,
        dirpath_env: str | None = "TFRA_SAVED_KV",
        load_entire_dir: bool = False,
        buffer_size: int = table_files.BUFFER_SIZE,
        name: str | None = None,
    ) -> Any:
        """Adds the rows of one pair of files to the variable.

        With `load_entire_dir` it loads all the variable's pairs in the folder.
        """
        self._variable._check_has_raw_form()
        return table_files.load_pairs(
            self._variable.table,
            table_files.folder(dirpath, dirpath_env),
            file_name or self.name,
            entire_folder=load_entire_dir,
            buffer_size=buffer_size,
            name=name,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} '{self.name}' of {self._variable!r}>"

    @property
    def _has_strings(self) -> bool:
        """Says whether the rows are strings, in a table of TensorFlow."""
        return bool(self.value_dtype == tf.string)

    def _read(self, keys: tf.Tensor) -> Any:
        if self._has_strings:
            return self._variable.table.lookup(keys, self._index)
        return table_ops.lookup(
            self._variable.table.handles[self._index],
            keys,
            dim=self.dim,
            value_dtype=self.value_dtype,
        )

    def _gather_saveables_for_checkpoint(self) -> dict[str, Any]:
        variable = self._variable
        if variable.saveable is None:
            if tf.executing_eagerly() and private.asked_by_saver():
                raise not_in_savers(repr(self))
            return {}
        if variable.shard_num > 1:
            raise errors.UnsupportedError(
                f"Savers save '{variable.name}' whole, not by shard. Give them "
                "the Variable in place of its `tables`."
            )
        found: dict[str, Any] = variable._gather_saveables_for_checkpoint()
        return found
