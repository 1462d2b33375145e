"""Keras layers over tables that grow with their ids."""

from __future__ import annotations

import sys as _sys
from collections.abc import Callable
from typing import Any

import keras
import keras as _keras
import tensorflow as tf

from tfembed import checks, errors
from tfembed.dynamic_embedding.keras import combiners, layer_config
from tfembed.dynamic_embedding.keras.callbacks import HvdAllToAllEmbedding
from tfembed.dynamic_embedding.keras.combiners import reduce_pooling
from tfembed.dynamic_embedding.keras.table_layer import TableLayer

__all__ = [
    "BasicEmbedding",
    "Embedding",
    "FieldWiseEmbedding",
    "HvdAllToAllEmbedding",
    "LayerNormalization",
    "SquashedEmbedding",
    "reduce_pooling",
]


@keras.saving.register_keras_serializable(package="tfembed")
class SquashedEmbedding(TableLayer):
    """Combines the rows of each example's ids: [batch, ...] -> [batch, size].

    Ids of rank 1 are one example: [n] -> [size]. The arguments are those of
    `Embedding`.

    Args:
      combiner: "sum", "mean", "sqrtn" (sum / sqrt(number of ids)), "max",
        "min", "prod", "std", or a function of (rows, axes). Ragged ids support
        only the first three. For these and "std", no ids give zeros.

    Example:
      embed = SquashedEmbedding(8, name="genres")
      embed(tf.constant([[15, 2], [4, 92], [22, 4]], tf.int64)).shape  # [3, 8]
    """

    def call(self, ids: Any) -> tf.Tensor:
        """Returns the combined rows of `ids`, a tensor or a tf.RaggedTensor."""
        rows = self.look_up(ids)
        if not isinstance(rows, tf.RaggedTensor):
            return combiners.combine_dense(rows, self.combiner)
        if rows.shape.rank > 3:
            rows = rows.merge_dims(1, rows.shape.rank - 2)
        return combiners.combine_bags(
            rows.flat_values, rows.value_rowids(), rows.nrows(), self.combiner
        )

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Returns [batch, size], or [size]."""
        batch = input_shape[:1] if len(input_shape) > 1 else ()
        return (*batch, self.embedding_size)


@keras.saving.register_keras_serializable(package="tfembed")
class FieldWiseEmbedding(TableLayer):
    """Combines rows field by field: [batch, n] -> [batch, nslots, size].

    Args:
      embedding_size: as in `Embedding`, like the arguments after `slot_map_fn`;
        `combiner` is "sum", "mean" or "sqrtn".
      nslots: number of fields.
      slot_map_fn: a function from ids to fields, integers in [0, nslots) of the
        ids' shape. It must be registered with Keras if the model is saved.
        Fields without an id give zeros.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) `slot_map_fn` is not a
        function, or `nslots` is not a positive integer.

    Example:
      embed = FieldWiseEmbedding(4, 2, lambda ids: ids % 2, name="fields")
      embed(tf.constant([[23, 12, 0], [9, 13, 10]], tf.int64)).shape  # [2, 2, 4]
    """

    def __init__(
        self,
        embedding_size: int,
        nslots: int,
        slot_map_fn: Callable[[tf.Tensor], tf.Tensor] | str | None = None,
        key_dtype: Any = tf.int64,
        value_dtype: Any = tf.float32,
        combiner: Any = "sum",
        initializer: Any = None,
        devices: Any = None,
        name: str = "SlotDynamicEmbeddingLayer",
        with_unique: bool = True,
        **kwargs: Any,
    ) -> None:
        map_fn = layer_config.object_of(slot_map_fn, "slot_map_fn")
        if not callable(map_fn):
            raise errors.ArgumentError(
                f"`slot_map_fn` must be a function of ids; got {slot_map_fn!r}."
            )
        super().__init__(
            embedding_size,
            key_dtype,
            value_dtype,
            combiner,
            initializer,
            devices,
            name,
            with_unique,
            **kwargs,
        )
        self.nslots = checks.integer(nslots, "nslots", least=1)
        self.slot_map_fn = map_fn

    def call(self, ids: Any) -> tf.Tensor:
        """Combines rows of `ids` [batch, n], a tensor or tf.RaggedTensor."""
        if ids.shape.rank != 2:
            raise errors.UnsupportedError(
                f"Ids of layer '{self.name}' must have rank 2; got shape "
                f"{ids.shape}."
            )
        if isinstance(ids, tf.RaggedTensor):
            flat, examples, batch = (
                self._keys(ids.flat_values),
                ids.value_rowids(),
                ids.nrows(),
            )
        else:
            shape = tf.shape(ids, tf.int64)
            batch = shape[0]
            examples = tf.repeat(tf.range(batch), shape[1])
            flat = tf.reshape(self._keys(ids), [-1])
        bags = examples * self.nslots + self._slots(flat)
        combined = combiners.combine_bags(
            self.look_up(flat), bags, batch * self.nslots, self.combiner
        )
        return tf.reshape(combined, [batch, self.nslots, self.embedding_size])

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Returns [batch, nslots, size]."""
        return (input_shape[0], self.nslots, self.embedding_size)

    def get_config(self) -> dict[str, Any]:
        """Returns the layer's arguments."""
        return {
            **super().get_config(),
            "nslots": self.nslots,
            "slot_map_fn": layer_config.name_of(
                self.slot_map_fn, "slot_map_fn"
            ),
        }

    def _slots(self, ids: tf.Tensor) -> tf.Tensor:
        slots = tf.cast(self.slot_map_fn(ids), tf.int64)
        check = tf.debugging.Assert(
            tf.reduce_all((slots >= 0) & (slots < self.nslots)),
            [
                f"slot_map_fn of layer '{self.name}' must give slots in [0, "
                f"{self.nslots})",
                slots,
            ],
        )
        with tf.control_dependencies([check]):
            return tf.identity(slots)


@keras.saving.register_keras_serializable(package="tfembed")
class Embedding(TableLayer):
    """Looks ids up in a table of its own: ids.shape -> ids.shape + [size].

    The table needs no vocabulary: an id that was never trained has its initial
    row, and the update of a training step inserts it. Evaluation and prediction
    insert nothing. The gradients of repeated ids and of several calls in one
    step are summed. Compile the model with `DynamicEmbeddingOptimizer`.

    A layer has a table of its own; only calls of the same layer share rows.
    `clone_model` and `from_config` make layers with empty tables;
    `copy.deepcopy` and pickling copy the rows. `get_weights` keeps them for
    `set_weights`.

    Args:
      embedding_size: floats per row.
      key_dtype, value_dtype: the dtypes of ids and rows, as in `Variable`.
      combiner: the combiner of `SquashedEmbedding` and `FieldWiseEmbedding`.
      initializer: the rows of missing ids, as in `Variable`; None: Keras'
        RandomNormal().
      devices: one device per shard, as in `Variable`.
      name: the layer's name. The table is called `<name>-parameter`.
      with_unique: whether to fetch each distinct id of a call once.
      short_file_name: accepted for TFRA's sake.
      **kwargs: `bp_v2`, `restrict_policy`, `partitioner`, `kv_creator`,
        `admission`, `eviction`, `expiry`, `max_size`, `stochastic_rounding`: as
        in `Variable`; `checkpoint`: as in `Variable`; if False, Keras' files
        leave the rows out too, with a warning; `init_capacity`: keys to make
        room for; `fan_in`: the number of rows for initializers that scale by
        it, as in `Variable`; `max_norm`: longer rows (L2) are scaled down to it; and the
        arguments of any Keras layer, such as `trainable`.

    Attributes:
      params: the `Variable`.
      embedding_size, combiner, with_unique, max_norm: as given.

    Raises:
      tfembed.errors.UnsupportedError: `distribute_strategy`, or a Keras that
        runs on another backend than TensorFlow.
      Others as `Variable`.

    Example:
      embed = Embedding(8, name="users")
      embed(tf.constant([[15, 2], [4, 92]], tf.int64)).shape  # [2, 2, 8]
    """

    def call(self, ids: Any) -> Any:
        """Returns the rows of `ids`, a tensor or a tf.RaggedTensor."""
        return self.look_up(ids)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Returns ids.shape + [size]."""
        return (*input_shape, self.embedding_size)


BasicEmbedding = Embedding

LayerNormalization = _keras.layers.LayerNormalization

# TFRA programs also write `layers.embedding.Embedding`.
embedding = _sys.modules[__name__]
