"""A table whose rows are sharded over replicas, as one logical tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.embedding import private
from tfembed.embedding.private import Untracked
from tfembed.embedding.steps.batch_queue import HOST

__all__ = ["ShardedTable", "ShardedVariables", "TrainedTable", "with_gradient"]


class ShardedTable(private.Folder):
    """The rows, or a slot, of one table in a stack.

    Row r of a shard is row r * replicas + replica of the table. Checkpoints
    have the table as one variable, so that any engine restores it, with any
    number of replicas.

    Args:
      shards: per replica its variable of the whole stack, [rows, width].
      first: the table's first row in the stack's shard.
      shape: [vocabulary, width].
      name: the name of the table or slot.
    """

    def __init__(
        self,
        shards: Sequence[Any],
        first: int,
        shape: tuple[int, int],
        name: str,
    ) -> None:
        self._shards = Untracked(tuple(shards))
        self._first = first
        self.name = name
        self.shape = tf.TensorShape(shape)
        self.dtype = tf.float32

    def __repr__(self) -> str:
        return f"<tfembed.ShardedTable '{self.name}' shape={self.shape}>"

    def read_value(self) -> tf.Tensor:
        """Returns all rows, float32 [vocabulary, width]."""
        parts = [
            shard.read_value()[self._first : self._first + self._rows]
            for shard in self._shards.value
        ]
        width = self.shape[1]
        return tf.reshape(tf.stack(parts, 1), [-1, width])[: self.shape[0]]

    def gather(self, rows: Any) -> tf.Tensor:
        """Returns some rows, float32 [n, width]; eager only.

        Args:
          rows: the row numbers, an array [n].
        """
        replicas = len(self._shards.value)
        positions = np.asarray(rows)
        parts = [
            tf.gather(shard, self._first + positions[owned] // replicas)
            for replica, shard in enumerate(self._shards.value)
            for owned in [positions % replicas == replica]
        ]
        order = np.argsort(positions % replicas, kind="stable")
        return tf.gather(tf.concat(parts, 0), np.argsort(order))

    def scatter_update(self, sparse_delta: tf.IndexedSlices) -> None:
        """Sets some rows; eager only.

        Args:
          sparse_delta: rows [n, width] and their distinct row numbers [n].
        """
        replicas = len(self._shards.value)
        positions = np.asarray(sparse_delta.indices)
        for replica, shard in enumerate(self._shards.value):
            owned = np.flatnonzero(positions % replicas == replica)
            shard.scatter_update(
                tf.IndexedSlices(
                    tf.gather(sparse_delta.values, owned),
                    self._first + positions[owned] // replicas,
                )
            )

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns the rows as an array; eager only."""
        rows: np.ndarray[Any, Any] = self.read_value().numpy()
        return rows

    def assign(self, rows: Any) -> None:
        """Sets all rows.

        Args:
          rows: [vocabulary, width].

        Raises:
          tfembed.errors.ArgumentError: another shape.
        """
        rows = tf.convert_to_tensor(rows, tf.float32)
        if not rows.shape.is_compatible_with(self.shape):
            raise errors.ArgumentError(
                f"{self.name} takes {self.shape}; got {rows.shape}."
            )
        replicas = len(self._shards.value)
        missing = self._rows * replicas - self.shape[0]
        spread = tf.reshape(
            tf.pad(rows, [[0, missing], [0, 0]]),
            [self._rows, replicas, self.shape[1]],
        )
        for replica, shard in enumerate(self._shards.value):
            own = shard[self._first : self._first + self._rows]
            own.assign(spread[:, replica])

    @property
    def _rows(self) -> int:
        return -(-self.shape[0] // len(self._shards.value))

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {private.VARIABLE_VALUE: self.read_value()}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> None:
        rows = restored[private.VARIABLE_VALUE]
        if not rows.shape.is_compatible_with(self.shape):
            raise errors.CheckpointError(
                f"The checkpoint has {rows.shape} for {self.name}, which is "
                f"{self.shape}. Make the table as it was saved."
            )
        self.assign(rows)


def _as_tensor(
    table: ShardedTable,
    dtype: Any = None,
    name: Any = None,
    as_ref: bool = False,
) -> Any:
    del name, as_ref
    if dtype is not None and dtype != tf.float32:
        return NotImplemented
    return table.read_value()


tf.register_tensor_conversion_function(ShardedTable, _as_tensor)


class ShardedVariables:
    """Makes sharded variables and tables for one object.

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
        """Makes a variable with a value of its own on each replica.

        Args:
          initial_value: the initial value of all shards.
          name: the name of the variable.
          aggregation: how a read outside of strategy.run combines the values.
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
        """Makes a table in a variable of `per_replica`, filled and saved.

        Args:
          variable: the variable of a whole stack.
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


class TrainedTable(ShardedTable):
    """A ShardedTable that `tape.gradient` takes as a source.

    The gradient is one tf.IndexedSlices, for the ids that this replica looked
    up. A plain optimizer cannot apply it: it would add up the replicas'
    gradients of different rows.

    Args:
      shards, first, shape, name: as for ShardedTable.
      anchor: a variable [0, width] whose handle stands for the table in tapes.
    """

    trainable = True
    # Makes tapes watch its handle.
    _should_act_as_resource_variable = True

    def __init__(
        self,
        shards: Sequence[Any],
        first: int,
        shape: tuple[int, int],
        name: str,
        *,
        anchor: Any,
    ) -> None:
        super().__init__(shards, first, shape, name)
        self._anchor = Untracked(anchor)

    @property
    def _shared_name(self) -> str:
        """The variable's name that checkpoints store beside its key."""
        return str(self.name)

    @property
    def handle(self) -> tf.Tensor:
        """The resource handle that lookups pass their gradients to."""
        handle: tf.Tensor = self._anchor.value.handle
        return handle

    # The attributes that optimizers of Keras 3, tf_keras and tf.compat.v1 read
    # first of a variable.

    @property
    def _unique_id(self) -> str:
        self._refuse()

    def get_shape(self) -> tf.TensorShape:
        """Refuses optimizers of tf.compat.v1: raises UnsupportedError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise errors.UnsupportedError(
            f"An optimizer alone cannot train table {self.name!r}: its rows are "
            "spread over the replicas, and an optimizer adds up gradients as if "
            "each had all of them. Call embedding.apply_optimizer(optimizer, "
            "zip(gradients, variables)) in place of optimizer.apply_gradients."
        )


def with_gradient(
    anchor: tf.Tensor, ids: tf.Tensor, rows: tf.Tensor, vocabulary: int
) -> tf.Tensor:
    """Returns the rows of an exchange with a gradient by id.

    Args:
      anchor: [0, width]: the tensor that gets the gradient, tf.IndexedSlices.
      ids: int32 [n]; negative ids have no row and no gradient.
      rows: [n, width].
      vocabulary: the vocabulary of the table.
    """

    @tf.custom_gradient
    def attached(
        anchor: tf.Tensor, ids: tf.Tensor, rows: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        del anchor

        def backward(upstream: tf.Tensor) -> tuple[Any, None, None]:
            there = (ids >= 0)[:, tf.newaxis]
            slices = tf.IndexedSlices(
                tf.where(there, upstream, 0.0),
                ids,
                tf.constant([vocabulary, rows.shape[1]]),
            )
            return slices, None, None

        return tf.identity(rows), backward

    found: tf.Tensor = attached(anchor, ids, tf.stop_gradient(rows))
    return found
