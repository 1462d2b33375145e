"""TFRA's names for the stores of a variable's rows: `CuckooHashTable`, ..."""

from __future__ import annotations

import abc
import dataclasses
import enum
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.variables import arguments, table_files
from tfembed.dynamic_embedding.variables.table_files import (
    BUFFER_SIZE,
    DynamicEmbeddingSaver,
)
from tfembed.not_in_release import absent
from tfembed.ops.private import untracked
from tfembed.tables import HashTable

__all__ = [
    "CuckooHashTable",
    "CuckooHashTableConfig",
    "CuckooHashTableCreator",
    "HkvEvictStrategy",
    "HkvHashTable",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "KVCreator",
    "RedisTable",
    "RedisTableConfig",
    "RedisTableCreator",
    "check_kv_creator",
]


class CuckooHashTable(tf.Module):
    """A map from keys to rows, in one shard.

    `Variable` does more; this is for programs that use TFRA's tables directly.

    Args:
      key_dtype, value_dtype: as for `Variable`.
      default_value: the row of missing keys: a number, for width 1, or a row
        [dim].
      name: the table's name.
      checkpoint: whether `tf.train.Checkpoint` saves it.
      init_size: keys to make room for at once.
      config: None or a `CuckooHashTableConfig`.
      device: "" or a CPU.
      shard_saveable_object_fn: None.

    Raises:
      The errors of `Variable`; tfembed.errors.UnsupportedError: the last
      argument.
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
        """Returns the number of keys, int64 []."""
        with tf.name_scope(name or "size"):
            return self._table.size()

    def lookup(
        self,
        keys: Any,
        dynamic_default_values: Any = None,
        return_exists: bool = False,
        name: str | None = None,
    ) -> Any:
        """Returns the rows of `keys`, keys.shape + [dim]; inserts nothing.

        Args:
          keys: keys of any shape.
          dynamic_default_values: the rows of missing keys, one for all, [dim],
            or one per key, keys.shape + [dim]; None: the default value.
          return_exists: whether to return a pair, also with bool, keys.shape:
            whether each key is present.
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
        """Writes rows; the last row of a repeated key wins."""
        with tf.name_scope(name or "insert"):
            return self._table.upsert(keys, values)

    def accum(
        self,
        keys: Any,
        values_or_deltas: Any,
        exists: Any,
        name: str | None = None,
    ) -> Any:
        """Adds to rows if `exists`, else inserts, as `HashTable.accum`."""
        with tf.name_scope(name or "accum"):
            return self._table.accum(keys, values_or_deltas, exists)

    def remove(self, keys: Any, name: str | None = None) -> Any:
        """Removes keys; missing keys are ignored."""
        with tf.name_scope(name or "remove"):
            return self._table.remove(keys)

    def clear(self, name: str | None = None) -> Any:
        """Removes all keys."""
        with tf.name_scope(name or "clear"):
            return self._table.clear()

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys [n] and rows [n, dim]."""
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


class KVCreator(abc.ABC):
    """Chooses a store for the rows of a `Variable`.

    Args:
      config: the store's own.
      saver: None, or a `FileSystemSaver`.

    Raises:
      tfembed.errors.StateError: (also RuntimeError) another `saver`.
    """

    def __init__(self, config: Any = None, saver: Any = None) -> None:
        if saver is not None and not isinstance(saver, DynamicEmbeddingSaver):
            raise errors.StateError(
                "`saver` must be a DynamicEmbeddingSaver, such as "
                f"FileSystemSaver(), or None; got {saver!r}."
            )
        self.config = config
        self.saver = saver

    @abc.abstractmethod
    def create(self, *arguments: Any, **options: Any) -> Any:
        """Makes a table without a variable.

        Args:
          *arguments, **options: as `CuckooHashTableCreator.create` takes them.
        """

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make the same creator."""
        return {"config": self.config, "saver": self.saver}


@dataclasses.dataclass(frozen=True)
class CuckooHashTableConfig:
    """The config of the table in memory, which has nothing to set."""


class CuckooHashTableCreator(KVCreator):
    """The table in host memory, which is the default.

    The name is TFRA's; the table's own algorithm is in docs/architecture.md.
    """

    def create(
        self,
        key_dtype: Any = None,
        value_dtype: Any = None,
        default_value: Any = None,
        name: str | None = None,
        checkpoint: bool | None = None,
        init_size: int | None = None,
        config: Any = None,
        device: str | None = None,
        shard_saveable_object_fn: Any = None,
    ) -> CuckooHashTable:
        """Makes a `CuckooHashTable`; None arguments get their defaults."""
        return CuckooHashTable(
            key_dtype or tf.int64,
            value_dtype or tf.float32,
            0 if default_value is None else default_value,
            name or "CuckooHashTable",
            checkpoint if checkpoint is not None else True,
            init_size or 0,
            config or self.config,
            device or "",
            shard_saveable_object_fn,
        )


def check_kv_creator(kv_creator: Any) -> None:
    """Checks that a variable's `kv_creator` chooses host memory.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) not a `KVCreator`.
      tfembed.errors.UnsupportedError: a creator of another store.
    """
    if kv_creator is None or isinstance(kv_creator, CuckooHashTableCreator):
        return
    if not isinstance(kv_creator, KVCreator):
        raise errors.DtypeError(
            "`kv_creator` must be None or a CuckooHashTableCreator(); got "
            f"{kv_creator!r}."
        )
    raise errors.UnsupportedError(
        f"`kv_creator` {type(kv_creator).__name__} is not in this release; rows "
        "are kept in host memory. Leave it None, or use CuckooHashTableCreator()."
    )


class HkvEvictStrategy(enum.IntEnum):
    """Names of TFRA's strategies, which tfembed does not use."""

    LRU = 0
    LFU = 1
    EPOCHLRU = 2
    EPOCHLFU = 3
    CUSTOMIZED = 4


HkvHashTable = absent("HkvHashTable", __name__)
HkvHashTableConfig = absent("HkvHashTableConfig", __name__)
HkvHashTableCreator = absent("HkvHashTableCreator", __name__)
RedisTable = absent("RedisTable", __name__)
RedisTableConfig = absent("RedisTableConfig", __name__)
RedisTableCreator = absent("RedisTableCreator", __name__)
