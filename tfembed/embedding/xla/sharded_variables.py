"""Variables of which each replica has its own, and tables that lie in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed.embedding import private
from tfembed.embedding.steps.batch_queue import HOST
from tfembed.embedding.xla.sharded_table import ShardedTable

__all__ = ["ShardedVariables"]


class ShardedVariables:
    """Makes them for one object.

    Args:
      owner: the trackable object that saves the tables.
      strategy: a TPUStrategy.
    """

    def __init__(self, owner: Any, strategy: Any) -> None:
        self._owner = owner
        self._strategy = strategy

    def per_replica(
        self,
        initial_value: tf.Tensor,
        name: str,
        aggregation: Any = tf.VariableAggregation.ONLY_FIRST_REPLICA,
    ) -> Any:
        """A variable that nothing keeps alike on the replicas.

        Args:
          initial_value: of all of them.
          name: the variable's.
          aggregation: what a read outside of strategy.run gives.
        """
        with self._strategy.scope():
            return tf.Variable(
                initial_value,
                trainable=False,
                name=name,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=aggregation,
            )

    def table(
        self,
        variable: Any,
        first: int,
        shape: tuple[int, int],
        name: str,
        initializer: Callable[..., tf.Tensor],
        kind: Callable[..., Any] = ShardedTable,
    ) -> Any:
        """A table in such a variable, filled, and saved by the owner.

        Args:
          variable: of a whole stack.
          first, shape, name: as for ShardedTable.
          initializer: called as initializer(shape, dtype=).
          kind: makes the table, with a ShardedTable's arguments.
        """
        shards = self._strategy.experimental_local_results(variable)
        table = kind(shards, first, shape, name)
        with tf.device(HOST):
            table.assign(initializer(shape, dtype=tf.float32))
        # A checkpoint that waits for it is restored here.
        return private.track(self._owner, name, table)
