"""A table of a TPU's embedding engine in checkpoints: one logical tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding import private
from tfembed.embedding.untracked import Untracked

__all__ = ["TpuTable"]


class TpuTable(private.Folder):
    """Saves and restores the shards that lie on the hosts.

    The owner retrieves from the hardware before it is saved. After a restore
    the hardware takes the new rows.

    Args:
      sharded: a variable of one shard per host, rows one after another.
      load: called after a restore.
    """

    def __init__(self, sharded: Any, load: Callable[[], None]) -> None:
        self._sharded = Untracked(sharded)
        self._load = load

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        shards = [shard.read_value() for shard in self._sharded.value.variables]
        return {private.VARIABLE_VALUE: tf.concat(shards, 0)}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> None:
        rows = restored[private.VARIABLE_VALUE]
        sharded = self._sharded.value
        if not rows.shape.is_compatible_with(sharded.shape):
            raise errors.CheckpointError(
                f"The checkpoint has {rows.shape} for a table of shape "
                f"{sharded.shape}. Make the table as it was saved."
            )
        first = 0
        for shard in sharded.variables:
            count = shard.shape[0]
            shard.assign(rows[first : first + count])
            first += count
        self._load()
