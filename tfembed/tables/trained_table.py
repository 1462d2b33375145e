"""How one optimizer trains the rows of a hash table."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.ops import grouped
from tfembed.ops import table as table_ops
from tfembed.tables import arguments, batches
from tfembed.tables.evicting_table import EvictingTable

__all__ = ["TrainedTable"]


class TrainedTable(EvictingTable):
    """Rows with the slots of at most one optimizer. Base of `HashTable`."""

    # None where no optimizer is attached, as in a table from a SavedModel.
    _optimizer: Any = None

    @property
    def optimizer(self) -> Any:
        """The attached optimizer, or None."""
        return self._optimizer

    def attach(self, optimizer: Any) -> None:
        """Lays the slots of `optimizer` out beside each row.

        Args:
          optimizer: a `tfembed.optimizers` description. One with the same rule
            and parameters may come again.

        Raises:
          tfembed.errors.ArgumentError: the table has another optimizer, or the
            slots of another one from a checkpoint.
        """
        rule = optimizer.rule_text()
        if self._optimizer is not None and self._optimizer.rule_text() != rule:
            raise errors.ArgumentError(
                f"Table '{self.name}' has optimizer "
                f"'{self._optimizer.rule_text()}' and cannot take '{rule}' as a "
                "second one. Train with one of them, or use two tables."
            )
        if self._optimizer is None:
            self._set_slots(optimizer, rule)
            self._optimizer = optimizer
            self._slot_names = tuple(optimizer.slot_names)

    def apply_gradients(
        self,
        keys: Any,
        gradients: Any,
        learning_rate: Any = None,
        nonfinite: str = "skip",
    ) -> tf.Tensor:
        """Updates the rows of `keys` by the attached optimizer, once per key.

        Args:
          keys: int64 of any shape; the gradients of a repeated key are summed.
          gradients: float32, keys.shape + [dim].
          learning_rate: number or scalar; None: the optimizer's.
          nonfinite: what to do with a summed gradient that is not finite:
            "skip", "refuse" or "allow".

        Returns:
          The number of keys whose summed gradient is not finite, int64 [].

        Raises:
          tfembed.errors.StateError: no optimizer is attached.
          tf.errors.InvalidArgumentError: shapes that do not fit, or a gradient
            that is refused. Nothing is changed.
        """
        if self._optimizer is None:
            raise errors.StateError(
                f"Table '{self.name}' has no optimizer; call `attach` first."
            )
        rate = self._optimizer.learning_rate
        rate = rate if learning_rate is None else learning_rate
        keys, rows = self._keys_and_rows(keys, gradients)
        parts = self.partition(keys)
        n = len(self.shards)
        counts = grouped.grouped_update(
            self.handles,
            [],
            [self.dim] * n,
            [
                grouped.feature_ids(tf.reshape(part, [-1]))
                for part in parts.split(keys)
            ],
            [grouped.FeaturePlan(table=i, combiner="sum") for i in range(n)],
            [tf.reshape(part, [-1, self.dim]) for part in parts.split(rows)],
            rules=[self._optimizer.rule_text()] * n,
            learning_rates=[rate() if callable(rate) else rate] * n,
            nonfinite=nonfinite,
        )
        self.note_training_step()
        return tf.reduce_sum(counts)

    def _keys_and_rows(
        self, keys: Any, rows: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        keys = self._key_tensor(keys)
        rows = batches.value_tensor(rows, self.value_dtype, self.name)
        arguments.check_rows(keys, rows, self.dim, self.name)
        return keys, rows

    def _key_tensor(self, keys: Any) -> tf.Tensor:
        if tf.is_tensor(keys) and keys.dtype == tf.int32:
            keys = tf.cast(keys, self.key_dtype)
        return batches.key_tensor(keys, self.key_dtype, self.name)

    def _set_slots(self, optimizer: Any, rule: str) -> None:
        try:
            with tf.init_scope():
                for handle in self.handles:
                    table_ops.set_slots(
                        handle,
                        owner=rule.split()[0],
                        names=optimizer.slot_names,
                        initial_values=[
                            optimizer.slot_initial_values[slot]
                            for slot in optimizer.slot_names
                        ],
                    )
        except tf.errors.FailedPreconditionError as error:
            raise errors.ArgumentError(
                f"Table '{self.name}' cannot take optimizer '{rule}': "
                f"{error.message}"
            ) from error
