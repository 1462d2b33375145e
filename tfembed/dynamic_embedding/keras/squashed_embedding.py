"""The layer that gives one row for each example."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfembed.dynamic_embedding.keras import combiners
from tfembed.dynamic_embedding.keras.table_layer import TableLayer

__all__ = ["SquashedEmbedding"]


@keras.saving.register_keras_serializable(package="tfembed")
class SquashedEmbedding(TableLayer):
    """Combines the rows of each example's ids: [batch, ...] -> [batch, size].

    Ids of rank 1 are one example: [n] -> [size]. The arguments are those of
    `Embedding`.

    Args:
      combiner: "sum", "mean", "sqrtn" (sum / sqrt(number of ids)), "max", "min",
        "prod", "std", or a function of (rows, axes). Ragged ids take the first
        three. An example without ids gives zeros by these and by "std".

    Example:
      embed = SquashedEmbedding(8, name="genres")
      embed(tf.constant([[15, 2], [4, 92], [22, 4]], tf.int64)).shape  # [3, 8]
    """

    def call(self, ids: Any) -> tf.Tensor:
        """The combined rows of `ids`, a tensor or a tf.RaggedTensor."""
        rows = self.look_up(ids)
        if not isinstance(rows, tf.RaggedTensor):
            return combiners.combine_dense(rows, self.combiner)
        if rows.shape.rank > 3:
            rows = rows.merge_dims(1, rows.shape.rank - 2)
        return combiners.combine_bags(
            rows.flat_values, rows.value_rowids(), rows.nrows(), self.combiner
        )

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """[batch, size], or [size]."""
        batch = input_shape[:1] if len(input_shape) > 1 else ()
        return (*batch, self.embedding_size)
