"""One table in memory with the methods of TFRA's `CuckooHashTable`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.files import table_files
from tfembed.dynamic_embedding.files.table_files import BUFFER_SIZE
from tfembed.dynamic_embedding.variables import arguments
from tfembed.ops.private import untracked
from tfembed.tables import HashTable

__all__ = ["CuckooHashTable"]


class CuckooHashTable(tf.Module):
    """A map from keys to rows, in one shard.

    `Variable` does more; this is for programs that use TFRA's tables bare.

    Args:
      key_dtype, value_dtype: as for `Variable`.
      default_value: what missing keys read: a number, for rows of width 1, or
        a row [dim].
      name: the table's name.
      checkpoint: whether `tf.train.Checkpoint` saves it.
      init_size: keys to make room for at once.
      config: None or a `CuckooHashTableConfig`.
      device: "" or a CPU.
      shard_saveable_object_fn: None.

    Raises:
      As `Variable`; tfembed.errors.UnsupportedError: the last argument.
    """

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        name: str = "CuckooHashTable",
        checkpoint: bool = True,
        init_size: int = 0,
        config: Any = None,
        device: str = "",
        shard_saveable_object_fn: Any = None,
    ) -> None:
        super().__init__()
        if shard_saveable_object_fn is not None:
            raise errors.UnsupportedError(
                "`shard_saveable_object_fn` is TFRA's way of saving; "
                "tf.train.Checkpoint saves this table by itself. Leave it None."
            )
        del config
        row = tf.reshape(tf.convert_to_tensor(default_value), [-1])
        table = HashTable(
            int(row.shape[0]),
            key_dtype=key_dtype,
            value_dtype=value_dtype,
            name=name,
            initializer=row,
            devices=("/CPU:0" if device in ("", None) else device,),
            init_size=init_size,
        )
        self._table = table if checkpoint else untracked(self, table)

    @property
    def table(self) -> HashTable:
        """The rows."""
        return self._table

    @property
    def key_dtype(self) -> tf.DType:
        """Dtype of the keys."""
        return self._table.key_dtype

    @property
    def value_dtype(self) -> tf.DType:
        """Dtype of the rows."""
        return self._table.value_dtype

    @property
    def resource_handle(self) -> tf.Tensor:
        """The table's handle."""
        return self._table.handle

    def size(self, name: str | None = None) -> tf.Tensor:
        """The number of keys, int64 []."""
        with tf.name_scope(name or "size"):
            return self._table.size()

    def lookup(
        self,
        keys: Any,
        dynamic_default_values: Any = None,
        return_exists: bool = False,
        name: str | None = None,
    ) -> Any:
        """The rows of `keys`, keys.shape + [dim]; inserts nothing.

        Args:
          keys: keys of any shape.
          dynamic_default_values: what missing keys read, one row for all [dim]
            or one each, keys.shape + [dim]; None: the default value.
          return_exists: whether to say which keys are there, bool keys.shape.
          name: the name of the op.

        Raises:
          tfembed.errors.ArgumentError: default rows of another width.
        """
        with tf.name_scope(name or "lookup"):
            values, exists = self._table.lookup(keys)
            values = arguments.with_defaults(
                values, exists, dynamic_default_values
            )
            return (values, exists) if return_exists else values

    def insert(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Writes rows; of a repeated key the last one stays."""
        with tf.name_scope(name or "insert"):
            return self._table.upsert(keys, values)

    def accum(
        self,
        keys: Any,
        values_or_deltas: Any,
        exists: Any,
        name: str | None = None,
    ) -> Any:
        """`HashTable.accum`: adds where `exists`, else inserts."""
        with tf.name_scope(name or "accum"):
            return self._table.accum(keys, values_or_deltas, exists)

    def remove(self, keys: Any, name: str | None = None) -> Any:
        """Removes keys; those not there are ignored."""
        with tf.name_scope(name or "remove"):
            return self._table.remove(keys)

    def clear(self, name: str | None = None) -> Any:
        """Removes all keys."""
        with tf.name_scope(name or "clear"):
            return self._table.clear()

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """All keys [n] and rows [n, dim]."""
        with tf.name_scope(name or "export"):
            return self._table.export()

    def save_to_file_system(
        self,
        dirpath: Any,
        file_name: str | None = None,
        dirpath_env: str | None = "TFRA_SAVED_KV",
        append_to_file: bool = False,
        buffer_size: int = BUFFER_SIZE,
        name: str | None = None,
    ) -> Any:
        """Writes `<file_name>-keys` and `-values`: docs/formats/row_files.md.

        `file_name` is the table's name if None; the rest is as for
        `Variable.save_to_file_system`.
        """
        return table_files.save(
            self._table,
            table_files.folder(dirpath, dirpath_env),
            [self._stem(file_name)],
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
        buffer_size: int = BUFFER_SIZE,
        name: str | None = None,
    ) -> Any:
        """Adds the rows of `<file_name>-keys` and `-values`.

        With `load_entire_dir` also those of `<file_name>_mht_*`, as `Variable`
        names its files, in the same folder; the rest is as for
        `Variable.load_from_file_system`.
        """
        return table_files.load_pairs(
            self._table,
            table_files.folder(dirpath, dirpath_env),
            self._stem(file_name),
            entire_folder=load_entire_dir,
            buffer_size=buffer_size,
            name=name,
        )

    def _stem(self, file_name: str | None) -> str:
        return file_name or self._table.name.replace("/", "_")
