"""Tables that note something of another table's keys, and lose it with them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed.ops import table as table_ops
from tfembed.ops.private import orders_by_itself
from tfembed.tables.sharded_table import ShardedTable

__all__ = ["FollowedTable"]

# Evicted keys that followers may still note, as a share of the bound: a sweep
# reads all keys, so it must not come with each step.
_STALE_SHARE = 8


class FollowedTable(ShardedTable):
    """A table that takes others along where it loses keys. Base of `HashTable`.

    What `remove`, `clear`, `evict` and `expire` take from the table goes from
    its followers at once. A table of bounded size evicts inside of its writes,
    and no op says what. So a key that is written while it is missing is first
    removed from the followers, where it counts as new; and a follower that has
    an eighth more keys than the bound drops those that the table does not hold.
    """

    _followers: weakref.WeakSet[FollowedTable] | None = None
    _leader: weakref.ref[FollowedTable] | None = None

    def let_follow(self, follower: Any) -> None:
        """Has `follower`, a table of the same keys, lose what this one loses.

        A table follows one other. Neither keeps the other alive.
        """
        if self._followers is None:
            self._followers = weakref.WeakSet()
        self._followers.add(follower)
        follower._leader = weakref.ref(self)

    @property
    def followers(self) -> list[FollowedTable]:
        """The tables that lose the keys that this one loses."""
        return sorted(self._followers or (), key=lambda table: table.name)

    @property
    def max_size(self) -> int | None:
        """Keys that the table never exceeds; None: no bound."""
        return sum(shard.options.max_size for shard in self.shards) or None

    def contains(self, keys: Any) -> tf.Tensor:
        """Which of `keys`, of any shape, are there: bool, keys.shape."""
        keys = self._key_tensor(keys)
        parts = self.partition(keys)
        return parts.merge(
            [
                table_ops.contains(handle, part)
                for handle, part in zip(
                    self.handles, parts.split(keys), strict=True
                )
            ]
        )

    def keys(self) -> tf.Tensor:
        """All keys [n], shard after shard; no row is copied."""
        return tf.concat(
            [
                table_ops.keys(handle, key_dtype=self.key_dtype)
                for handle in self.handles
            ],
            0,
        )

    def forget(self, keys: tf.Tensor) -> list[tf.Operation]:
        """Removes `keys` from all followers; what must run for it."""
        return _made([table._remove(keys) for table in self.followers])

    def forget_evicted(self, keys: tf.Tensor) -> list[tf.Operation]:
        """Has followers take those of `keys` that are missing here for new ones.

        Called before a batch of writes.

        Returns:
          What must run before the batch.
        """
        if self.max_size is None or not self.followers:
            return []
        flat = tf.reshape(keys, [-1])
        missing = tf.boolean_mask(flat, tf.logical_not(self.contains(flat)))
        return self.forget(missing)

    def drop_stale(self) -> tf.Operation | None:
        """Removes the keys that the table that is followed does not hold."""
        leader = self._followed
        if leader is None:
            return None
        keys = self.keys()
        is_stale = tf.logical_not(leader.contains(keys))
        return self._remove(tf.boolean_mask(keys, is_stale))

    def _swept(self, written: tf.Operation | None) -> tf.Operation | None:
        """Ends a batch of writes to a follower: sweeps where it is time to."""
        leader = self._followed
        bound = leader.max_size if leader is not None else None
        if bound is None:
            return written

        def sweep() -> tf.Tensor:
            with tf.control_dependencies(_made([self.drop_stale()])):
                return tf.constant(True)

        with tf.control_dependencies(_made([written])):
            size = tf.add_n([table_ops.size(handle) for handle in self.handles])
            is_time = size > bound + bound // _STALE_SHARE
            swept = tf.cond(is_time, sweep, lambda: tf.constant(False))
        return None if written is None else tf.group(swept)

    @property
    def _followed(self) -> FollowedTable | None:
        """The table that this one follows, while it lives."""
        return None if self._leader is None else self._leader()

    def _remove(self, keys: tf.Tensor) -> tf.Operation | None:
        parts = self.partition(keys)
        shards = zip(self.handles, parts.split(keys), strict=True)
        return group([table_ops.remove(*shard) for shard in shards])

    def _key_tensor(self, keys: Any) -> tf.Tensor:
        # Each kind of table has its own: which dtypes its keys may have.
        raise NotImplementedError(f"{type(self).__name__} has no _key_tensor.")


def group(operations: Sequence[Any]) -> tf.Operation | None:
    """One operation in a graph of TensorFlow 1; functions order by themselves."""
    if orders_by_itself():
        return None
    return tf.group(*operations)


def _made(operations: Sequence[tf.Operation | None]) -> list[tf.Operation]:
    """Those of `operations` that are there: in eager mode none."""
    return [operation for operation in operations if operation is not None]
