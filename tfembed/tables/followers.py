"""Tables that note something of another table's keys, and lose it with them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfembed.ops.private import orders_by_itself

__all__ = ["Followers", "group"]

# Evicted keys that followers may still note, as a share of the bound: a sweep
# reads all keys, so it must not come with each step.
_STALE_SHARE = 8


class Followers:
    """The tables that lose the keys that one table, their leader, loses.

    Keys that `remove`, `clear`, `evict` and `expire` take from the leader go
    from its followers at once. A leader of bounded size evicts inside of its
    writes, and no op says what. So a key that is written while it is missing is
    first removed from the followers, where it counts as new; and a follower
    that has an eighth more keys than the bound drops those that the leader does
    not hold.

    Neither side keeps the other alive.

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
        """The table that this one follows, while it lives, or None."""
        return None if self._leader is None else self._leader()

    def add(self, follower: Any) -> None:
        """Has `follower`, a table of the same keys, lose what this one loses.

        A table follows one other at most.
        """
        self._tables.add(follower)
        follower.followers._leader = self._table

    def forget(self, keys: tf.Tensor) -> list[tf.Operation]:
        """Removes `keys` from all followers; returns what must run for it."""
        return _made([table.remove_alone(keys) for table in self])

    def forget_evicted(self, keys: tf.Tensor) -> list[tf.Operation]:
        """Has followers take keys that are missing in the leader for new ones.

        Called before a batch of writes to the leader.

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
        """Ends a batch of writes to a follower: sweeps where it is time to."""
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
    """Makes one operation in a graph of TensorFlow 1; None elsewhere."""
    if orders_by_itself():
        return None
    return tf.group(*operations)


def _made(operations: Sequence[tf.Operation | None]) -> list[tf.Operation]:
    """Leaves out the operations that are None, as all are in eager mode."""
    return [operation for operation in operations if operation is not None]
