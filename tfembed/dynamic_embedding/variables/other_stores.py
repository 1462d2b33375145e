"""TFRA's names of stores that this release does not have."""

from __future__ import annotations

import enum
from typing import Any, NoReturn

from tfembed import errors

__all__ = [
    "HkvEvictStrategy",
    "HkvHashTable",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "RedisTable",
    "RedisTableConfig",
    "RedisTableCreator",
]


class HkvEvictStrategy(enum.IntEnum):
    """Names of TFRA's strategies; nothing here takes one."""

    LRU = 0
    LFU = 1
    EPOCHLRU = 2
    EPOCHLFU = 3
    CUSTOMIZED = 4


class _OtherStore:
    """Raises when it is made."""

    _way_out: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise errors.UnsupportedError(
            f"{type(self).__name__} is not in this release; rows are kept in "
            f"host memory. {self._way_out}"
        )


class _Hkv(_OtherStore):
    _way_out = (
        "Leave `kv_creator` None: a model on a GPU reads and trains such a "
        "variable, too. `restrict_policy` bounds it."
    )


class _Redis(_OtherStore):
    _way_out = (
        "Leave `kv_creator` None, and share rows between processes by "
        "`tf.train.Checkpoint` or `save_to_file_system`."
    )


class HkvHashTableConfig(_Hkv):
    """Not in this release: raises UnsupportedError."""


class HkvHashTableCreator(_Hkv):
    """Not in this release: raises UnsupportedError."""


class HkvHashTable(_Hkv):
    """Not in this release: raises UnsupportedError."""


class RedisTableConfig(_Redis):
    """Not in this release: raises UnsupportedError."""


class RedisTableCreator(_Redis):
    """Not in this release: raises UnsupportedError."""


class RedisTable(_Redis):
    """Not in this release: raises UnsupportedError."""
