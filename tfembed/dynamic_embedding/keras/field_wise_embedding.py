"""The layer that gives one row for each field of each example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfembed import checks, errors
from tfembed.dynamic_embedding.keras import combiners, layer_config
from tfembed.dynamic_embedding.keras.table_layer import TableLayer

__all__ = ["FieldWiseEmbedding"]


@keras.saving.register_keras_serializable(package="tfembed")
class FieldWiseEmbedding(TableLayer):
    """Combines rows field by field: [batch, n] -> [batch, nslots, size].

    Args:
      embedding_size: as of `Embedding`, and so are the arguments after
        `slot_map_fn`; `combiner` is "sum", "mean" or "sqrtn".
      nslots: number of fields.
      slot_map_fn: a function that gives the field of each id, integers in
        [0, nslots) of the ids' shape. A model that is saved needs it to be
        registered with Keras. Fields without an id give zeros.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) `slot_map_fn` is no
        function, or `nslots` no positive integer.

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
        """The combined rows of `ids` [batch, n], a tensor or a tf.RaggedTensor."""
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
        """[batch, nslots, size]."""
        return (input_shape[0], self.nslots, self.embedding_size)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
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
