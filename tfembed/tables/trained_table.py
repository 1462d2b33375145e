"""How one optimizer trains the rows of a hash table."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.ops import grouped
from tfembed.ops import table as table_ops
from tfembed.ops.private import number_tensor
from tfembed.tables import arguments, batches
from tfembed.tables.dtypes import check_trained
from tfembed.tables.evicting_table import EvictingTable
from tfembed.tables.followed_table import group
from tfembed.tables.seeded_rows import SeededRows

__all__ = ["TrainedTable"]


class TrainedTable(EvictingTable):
    """Rows with the slots of at most one optimizer. Base of `HashTable`."""

    # None where no optimizer is attached, as in a table from a SavedModel.
    _optimizer: Any = None
    _drawn_rows: SeededRows | None = None

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
          tfembed.errors.DtypeError: (also TypeError) rows that are not float32,
            float16 or bfloat16.
          tfembed.errors.UnsupportedError: rows of width 0.
        """
        check_trained(self.value_dtype, self.name)
        if self.dim == 0:
            raise errors.UnsupportedError(
                f"Table '{self.name}' has dim 0: its rows have no numbers to "
                "train. Make it with a dim of at least 1."
            )
        rule = optimizer.rule_text()
        if isinstance(optimizer, optimizers.Optimizer):
            optimizer.check_fits_table(self.name, has_vocabulary=False)
        if self._optimizer is not None and self._optimizer.rule_text() != rule:
            raise errors.ArgumentError(
                f"Table '{self.name}' has optimizer "
                f"'{self._optimizer.rule_text()}' and cannot take '{rule}' as a "
                "second one. Train with one of them, or use two tables."
            )
        if self._optimizer is None:
            if not self.shards[0].is_in_graph:
                with tf.init_scope():
                    self._set_slots(optimizer)
            self._optimizer = optimizer
            row_wise = getattr(optimizer, "row_wise_slots", ())
            self._slot_names = tuple(optimizer.slot_names)
            self._slot_widths = tuple(
                1 if slot in row_wise else self.dim for slot in self._slot_names
            )

    def lay_out_slots(self) -> list[tf.Operation]:
        """Lays the attached optimizer's slots out in a table of a graph.

        `attach` does it in eager mode. A server makes a graph's table when a
        session first asks for it, so whatever uses slots there lays them out
        first; again is harmless.

        Returns:
          What must run before slots are used; outside of functions it does not
          run by itself.
        """
        if self._optimizer is None or not self.shards[0].is_in_graph:
            return []
        return self._set_slots(self._optimizer)

    def apply_gradients(
        self,
        keys: Any,
        gradients: Any,
        learning_rate: Any = None,
        nonfinite: str = "skip",
    ) -> tf.Tensor:
        """Updates the rows of `keys` by the attached optimizer, once per key.

        Args:
          keys: of `key_dtype`, any shape; the gradients of a repeated key are
            summed.
          gradients: float32, keys.shape + [dim].
          learning_rate: number or scalar; None: the optimizer's.
          nonfinite: what to do with a summed gradient that is not finite:
            "skip", "refuse" or "allow".

        Returns:
          The number of keys whose summed gradient is not finite, int64 []; 0
          with "allow", which looks at none.

        Raises:
          tfembed.errors.StateError: no optimizer is attached, or one whose
            update is not fused, or a Python function draws initial rows.
          tf.errors.InvalidArgumentError: shapes that do not fit, or a gradient
            that is refused. Nothing is changed.
        """
        if self._optimizer is None:
            raise errors.StateError(
                f"Table '{self.name}' has no optimizer; call `attach` first."
            )
        rate = getattr(self._optimizer, "learning_rate", None)
        if rate is None or not getattr(self._optimizer, "is_fused", True):
            raise errors.StateError(
                f"Table '{self.name}' is trained by the own update of "
                f"{self._optimizer.rule_text().split()[0]}; call that "
                "DynamicEmbeddingOptimizer's `apply_gradients`."
            )
        if self.is_drawn:
            raise errors.StateError(
                f"The initial rows of table '{self.name}' are drawn by a Python "
                "function; train it by a DynamicEmbeddingOptimizer, which "
                "inserts them first."
            )
        rate = rate if learning_rate is None else learning_rate
        rate = number_tensor(rate() if callable(rate) else rate)
        keys, rows = self._keys_and_rows(keys, gradients, tf.float32)
        rows = self._of_known_width(keys, rows)
        parts = self.partition(keys)
        n = len(self.shards)
        features = [
            grouped.feature_ids(tf.reshape(part, [-1]))
            for part in parts.split(keys)
        ]
        with tf.control_dependencies(self.lay_out_slots()):
            counts = grouped.grouped_update(
                self.handles,
                [],
                [self.dim] * n,
                features,
                [
                    grouped.FeaturePlan(table=i, combiner="sum")
                    for i in range(n)
                ],
                [tf.reshape(x, [-1, self.dim]) for x in parts.split(rows)],
                rules=[self._optimizer.rule_text()] * n,
                learning_rates=[rate] * n,
                nonfinite=nonfinite,
            )
        self.note_training_step()
        return tf.reduce_sum(counts)

    @property
    def is_drawn(self) -> bool:
        """Whether a Python function draws the rows of missing keys."""
        return self._drawn_rows is not None

    @property
    def trained_width(self) -> int:
        """Numbers of a row with its slots."""
        return self.dim + sum(self.slot_widths)

    def lookup_trained(self, keys: Any, shard: int | None = None) -> tf.Tensor:
        """Value and slots of `keys`; inserts nothing.

        Args:
          keys: of `key_dtype`, any shape.
          shard: the one to look in; None: in each for the keys that are its own.

        Returns:
          float32, keys.shape + [trained_width]; of a missing key the initial
          ones.
        """
        keys, width = self._key_tensor(keys), self.trained_width

        def read(handle: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
            if not self.is_drawn:
                return table_ops.lookup_trained(handle, keys, width=width)
            # Asked first: the value of a key that comes meanwhile is as it was.
            there = table_ops.contains(handle, keys)
            with tf.control_dependencies([there]):
                rows = table_ops.lookup_trained(handle, keys, width=width)
            return self.with_drawn_rows(keys, rows, there)

        with tf.control_dependencies(self.lay_out_slots()):
            if shard is not None:
                return read(self.handles[shard], keys)
            parts = self.partition(keys)
            shards = zip(self.handles, parts.split(keys), strict=True)
            return parts.merge([read(*each) for each in shards])

    def with_drawn_rows(
        self, keys: tf.Tensor, rows: tf.Tensor, exists: tf.Tensor
    ) -> tf.Tensor:
        """`rows`, but of missing keys what a Python initializer draws.

        Args:
          keys: of any shape.
          rows: keys.shape + [dim or more]: values and what comes after them.
          exists: bool, keys.shape.
        """
        if self._drawn_rows is None or self.dim == 0:
            return rows
        width = rows.shape[-1]
        missing = tf.where(tf.logical_not(tf.reshape(exists, [-1])))
        drawn = self._drawn_rows.of_keys(
            tf.gather_nd(tf.reshape(keys, [-1]), missing),
            table_ops.seed(self.handle),
        )
        flat = tf.reshape(rows, [-1, width])
        rest = tf.gather_nd(flat, missing)[:, self.dim :]
        filled = tf.tensor_scatter_nd_update(
            flat, missing, tf.concat([tf.cast(drawn, flat.dtype), rest], 1)
        )
        filled = tf.reshape(filled, tf.shape(rows))
        filled.set_shape(rows.shape)
        return filled

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel" and self._drawn_rows is not None:
            children["drawn_rows"] = self._drawn_rows.saved
        return children

    @classmethod
    def _deserialize_from_proto(cls, **kwargs: Any) -> TrainedTable:
        table = super()._deserialize_from_proto(**kwargs)
        traced = kwargs["dependencies"].get("drawn_rows")
        if traced is not None:
            table._drawn_rows = SeededRows.from_saved(traced)
        return table

    def insert_missing(self, keys: tf.Tensor) -> tf.Operation | None:
        """Inserts those of `keys` [n] that are missing, as a function draws them.

        Called before an update, which knows nothing of Python. Nothing is done
        in a table that draws its rows by itself.
        """
        if self._drawn_rows is None:
            return None
        distinct = tf.unique(tf.reshape(keys, [-1])).y
        is_missing = tf.logical_not(self.contains(distinct))
        missing = tf.boolean_mask(distinct, is_missing)
        seed = table_ops.seed(self.handle)
        rows = self._drawn_rows.of_keys(missing, seed)
        return self.accum(missing, rows, tf.zeros_like(missing, tf.bool))

    def write_trained(
        self, keys: Any, rows: tf.Tensor, *, add: bool = False
    ) -> tf.Operation | None:
        """Writes value and slots of `keys`, or with `add` adds to them.

        What is added to a missing key is added to its initial row and slots.

        Args:
          keys: of `key_dtype`, any shape.
          rows: float32, keys.shape + [trained_width].
          add: whether they are differences.

        Returns:
          The op in a graph, None in eager mode.
        """
        keys = self._key_tensor(keys)
        parts = self.partition(keys)
        of_shards = parts.split(keys)
        shards = zip(self.handles, of_shards, parts.split(rows), strict=True)
        checks = [*parts.checks, *self.check_bounds(of_shards)]
        with tf.control_dependencies([*checks, *self.lay_out_slots()]):
            return group(
                [table_ops.write_trained(*shard, add=add) for shard in shards]
            )

    def _keys_and_rows(
        self, keys: Any, rows: Any, dtype: tf.DType | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        keys = self._key_tensor(keys)
        rows = batches.value_tensor(rows, dtype or self.value_dtype, self.name)
        arguments.check_rows(keys, rows, self.dim, self.name)
        return keys, rows

    def _of_known_width(self, keys: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Rows of `keys`, checked when it runs where it was not before."""
        if rows.shape.rank is not None and rows.shape[-1] is not None:
            return rows
        check = tf.debugging.assert_equal(
            tf.shape(rows),
            tf.concat([tf.shape(keys), [self.dim]], 0),
            f"The gradients of table '{self.name}' must have the shape of the "
            f"keys and then {self.dim}",
        )
        with tf.control_dependencies([] if check is None else [check]):
            return tf.identity(rows)

    def _key_tensor(self, keys: Any) -> tf.Tensor:
        if tf.is_tensor(keys) and keys.dtype == tf.int32:
            keys = tf.cast(keys, self.key_dtype)
        return batches.key_tensor(keys, self.key_dtype, self.name)

    def _set_slots(self, optimizer: Any) -> list[tf.Operation]:
        rule = optimizer.rule_text()
        row_wise = getattr(optimizer, "row_wise_slots", ())
        try:
            return [
                table_ops.set_slots(
                    handle,
                    owner=rule.split()[0],
                    names=optimizer.slot_names,
                    initial_values=[
                        optimizer.slot_initial_values[slot]
                        for slot in optimizer.slot_names
                    ],
                    row_wise=[
                        i
                        for i, slot in enumerate(optimizer.slot_names)
                        if slot in row_wise
                    ],
                )
                for handle in self.handles
            ]
        except tf.errors.FailedPreconditionError as error:
            raise errors.ArgumentError(
                f"Table '{self.name}' cannot take optimizer '{rule}': "
                f"{error.message}"
            ) from error
