"""The row methods of `Variable`: read, write, count, hand out."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tfembed import checks, errors
from tfembed.dynamic_embedding.variables import arguments
from tfembed.ops import private

__all__ = ["VariableRows"]


class VariableRows(tf.__internal__.tracking.Trackable):
    """Rows by key, over the shards of one table. Base of `Variable`.

    Attributes:
      name: the table's name, in messages.
      key_dtype: of its keys.
      value_dtype: of its rows.
      dim: width of a row.
      shard_num: how many shards there are.
    """

    name: str
    key_dtype: tf.DType
    value_dtype: tf.DType
    dim: int
    shard_num: int
    _table: Any  # A HashTable or, where rows are strings, a StringTable.

    @functools.cached_property
    def _sizes(self) -> dict[int | None, tf.Tensor]:
        """By shard, None: all; of the graph of TensorFlow 1 with the table."""
        return {}

    def upsert(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Writes the rows of `keys`; of a repeated key the last one stays.

        Args:
          keys: of `key_dtype`, any shape.
          values: of `value_dtype`, keys.shape + [dim].
          name: of the op.

        Returns:
          The op in a graph, None in eager mode.

        Raises:
          tfembed.errors.ArgumentError: another dtype.
          tf.errors.InvalidArgumentError: another shape. Nothing is changed.
        """
        with tf.name_scope(name or "upsert"):
            keys = arguments.key_tensor(keys, self)
            values = arguments.value_tensor(values, self)
            arguments.check_value_shape(keys, values, self.dim)
            return self._table.upsert(keys, values)

    def accum(
        self,
        keys: Any,
        old_values: Any,
        new_values: Any,
        exists: Any,
        name: str | None = None,
    ) -> Any:
        """Adds `new_values - old_values` to rows, or inserts `new_values`.

        A key that `exists` said was there and is, gets the difference; one that
        was not and is not, is inserted; others are left alone, since someone
        came between. Each occurrence of a repeated key counts.

        Args:
          keys: of `key_dtype`, any shape.
          old_values, new_values: of `value_dtype`, keys.shape + [dim].
          exists: bool, keys.shape, as `lookup(return_exists=True)` gave it.
          name: of the op.

        Returns:
          The op in a graph, None in eager mode.

        Raises:
          tfembed.errors.DtypeError: booleans and strings, which cannot be added.
          Others as `upsert`.
        """
        with tf.name_scope(name or "accum"):
            arguments.check_addition(self)
            keys = arguments.key_tensor(keys, self)
            old = arguments.value_tensor(old_values, self)
            new = arguments.value_tensor(new_values, self)
            arguments.check_value_shape(keys, new, self.dim)
            checks.rows("old_values", keys, old, self.dim)
            return self._table.accum(keys, new, exists, old)

    def lookup(
        self, keys: Any, return_exists: bool = False, name: str | None = None
    ) -> Any:
        """The rows of `keys`; inserts nothing and carries no gradient.

        Args:
          keys: of `key_dtype`, any shape.
          return_exists: whether to say which keys are there.
          name: of the op.

        Returns:
          Values of `value_dtype`, keys.shape + [dim], a missing key's initial
          row; with `return_exists` also bool, keys.shape.

        Raises:
          tfembed.errors.ArgumentError: keys of another dtype.
        """
        with tf.name_scope(name or "lookup"):
            keys = arguments.key_tensor(keys, self)
            values, exists = self._table.lookup(keys)
            return (values, exists) if return_exists else values

    def remove(self, keys: Any, name: str | None = None) -> Any:
        """Removes `keys`, of any shape; those not there are ignored.

        Raises:
          tfembed.errors.DtypeError: keys of another dtype.
        """
        with tf.name_scope(name or "remove"):
            keys = arguments.key_tensor(keys, self, errors.DtypeError)
            return self._table.remove(keys)

    def clear(self, name: str | None = None) -> Any:
        """Removes all keys."""
        with tf.name_scope(name or "clear"):
            return self._table.clear()

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """All keys [n] and values [n, dim], shard after shard.

        Of one moment of all shards together, where they lie on one device and
        values are numbers; else of one moment each shard.
        """
        with tf.name_scope(name or "export"):
            return self._table.export()

    def export_keys_and_scores(
        self, split_size: int = 1, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """All keys and what their rows are worth, in no particular order.

        Args:
          split_size: accepted for TFRA's sake.
          name: of the op.

        Returns:
          Keys [n] and scores float64 [n] by the variable's eviction policy: the
          lowest go first.

        Raises:
          tfembed.errors.DtypeError: (also TypeError) it has no such policy.
        """
        checks.integer(split_size, "split_size", least=1)
        if self._table.eviction is None:
            raise errors.DtypeError(
                f"'{self.name}' has no scores; make it with an `eviction` "
                "policy of tfembed.policies."
            )
        with tf.name_scope(name or "export_keys_and_scores"):
            return self._table.worth()

    @property
    def size_ops(self) -> list[tf.Tensor]:
        """The number of keys of each shard, int64 []."""
        return [self.size(i) for i in range(self.shard_num)]

    def size(
        self, index: int | None = None, name: str | None = None
    ) -> tf.Tensor:
        """The number of keys, int64 [], of shard `index` or of all shards.

        In a graph of TensorFlow 1 it is made once, but where `name` or
        tf.control_dependencies ask for one of its own: programs that ask for it
        in each step, or when the graph is finished, add nothing to the graph.
        """
        if index is not None and not 0 <= index < self.shard_num:
            raise errors.ArgumentError(
                f"`index` must be a shard in [0, {self.shard_num}); got {index}."
            )
        is_shared = name is None and private.waits_for_nothing()
        if is_shared and index in self._sizes:
            return self._sizes[index]
        with tf.name_scope(name or "size"):
            size = self._table.size(index)
        if is_shared:
            self._sizes[index] = size
        return size
