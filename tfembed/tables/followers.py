"""Tables that follow another table: keys removed there are removed here too."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfembed.ops.private import orders_by_itself

__all__ = ["Followers", "group"]

# Share of the bound that followers may hold in evicted keys before a sweep. A
# sweep reads all keys, so it must not run in each step.
_STALE_SHARE = 8


class Followers:
    """The tables that lose the keys that one table, their leader, loses.

    Keys that `remove`, `clear`, `evict` and `expire` remove from the leader are
    removed from its followers at once. A leader with a bound also evicts inside
    of its writes, and no op reports those keys. So before a write, keys that
    are missing in the leader are removed from the followers, for which they are
    new keys; and a follower with an eighth more keys than the bound is swept:
    it drops the keys that the leader does not hold.

    Leader and followers hold weak references to each other.

    Args:
      table: the `HashTable` that holds this object.
    """

    def __init__(self, table: Any) -> None:
        self._table = weakref.ref(table)
        self._tables: weakref.WeakSet[Any] = weakref.WeakSet()
        self._leader: weakref.ref[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(self._tables, key=lambda table: table.name))

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def leader(self) -> Any:
        """The table that this one follows; None if deleted or not set."""
        return None if self._leader is None else self._leader()

    def add(self, follower: Any) -> None:
        """Adds a follower, a table with keys of the same kind.

        A table follows at most one other table.
        """
        self._tables.add(follower)
        follower.followers._leader = self._table

    def forget(self, keys: tf.Tensor) -> list[tf.Operation]:
        """Removes `keys` from all followers; returns the graph's operations."""
        return _made([table.remove_alone(keys) for table in self])

    def forget_evicted(self, keys: tf.Tensor) -> list[tf.Operation]:
        """Removes those of `keys` that the leader lacks from all followers.

        Call this before a batch of writes to the leader.

        Returns:
          The operations that must run before the batch.
        """
        table = self._table()
        if not self._tables or table is None or table.max_size is None:
            return []
        flat = tf.reshape(keys, [-1])
        missing = tf.boolean_mask(flat, tf.logical_not(table.contains(flat)))
        return self.forget(missing)

    def drop_stale(self) -> tf.Operation | None:
        """Removes the keys that the leader does not hold."""
        leader, table = self.leader, self._table()
        if leader is None or table is None:
            return None
        keys = table.keys()
        is_stale = tf.logical_not(leader.contains(keys))
        return table.remove_alone(tf.boolean_mask(keys, is_stale))

    def swept(self, written: tf.Operation | None) -> tf.Operation | None:
        """Ends a follower's batch of writes; sweeps if many keys are stale."""
        leader, table = self.leader, self._table()
        bound = leader.max_size if leader is not None else None
        if bound is None or table is None:
            return written

        def sweep() -> tf.Tensor:
            with tf.control_dependencies(_made([self.drop_stale()])):
                return tf.constant(True)

        with tf.control_dependencies(_made([written])):
            is_time = table.size() > bound + bound // _STALE_SHARE
            swept = tf.cond(is_time, sweep, lambda: tf.constant(False))
        return None if written is None else tf.group(swept)


def group(operations: Sequence[Any]) -> tf.Operation | None:
    """Groups operations in a graph of TensorFlow 1; returns None elsewhere."""
    if orders_by_itself():
        return None
    return tf.group(*operations)


def _made(operations: Sequence[tf.Operation | None]) -> list[tf.Operation]:
    """Leaves out the operations that are None, as all are in eager mode."""
    return [operation for operation in operations if operation is not None]
