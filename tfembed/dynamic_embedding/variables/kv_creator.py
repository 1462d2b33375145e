"""The stores of a variable's rows, under TFRA's names."""

from __future__ import annotations

import abc
import dataclasses
import enum
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.files.table_files import DynamicEmbeddingSaver
from tfembed.dynamic_embedding.variables.cuckoo_hash_table import (
    CuckooHashTable,
)
from tfembed.not_in_release import absent

__all__ = [
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
        """Makes a table of its own, beside any variable.

        Args:
          *arguments, **options: as `CuckooHashTableCreator.create` takes them.
        """

    def get_config(self) -> dict[str, Any]:
        """The arguments that make the same creator."""
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
        """A `CuckooHashTable` with these arguments, its own where None."""
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
    """Raises where a variable's `kv_creator` does not choose host memory.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) it is no `KVCreator`.
      tfembed.errors.UnsupportedError: it is one of another store.
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
    """Names of TFRA's strategies; nothing here takes one."""

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
