"""The description of one embedding feature."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.config.table_config import TableConfig

__all__ = ["FeatureConfig"]

_TABLE_CONFIGS = (TableConfig, tf.tpu.experimental.embedding.TableConfig)


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureConfig:
    """How one feature is looked up in its table.

    Attributes:
      table: a `TableConfig`, ours or TensorFlow's.
      max_sequence_length: 0: a sample's ids are combined to one activation. L:
        SparseTensors and RaggedTensors of rank 2 give one activation per id,
        cut at L and padded with zeros, where `output_shape` is not given.
      validate_weights_and_indices: prune sparse input: ids below 0 of a static
        table, and, unless the combiner is "sum", weights of 0 or less.
      output_shape: the shape of the activations of one replica without the
        table's dim; None: given to `TPUEmbedding.build`, or found from the input.
      name: the feature's name in errors; None: its path in the structure.

    Raises:
      tfembed.errors.ArgumentError: a value that is not allowed.
    """

    table: Any
    max_sequence_length: int = 0
    validate_weights_and_indices: bool = True
    output_shape: Any = None
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.table, _TABLE_CONFIGS):
            raise errors.ArgumentError(
                f"Argument `table` has invalid type {type(self.table)}. "
                "Expected `tfembed.TableConfig` or "
                "`tf.tpu.experimental.embedding.TableConfig`."
            )
        length = self.max_sequence_length
        if type(length) is not int or length < 0:
            raise errors.ArgumentError(
                "Argument `max_sequence_length` must be an int and must be >= "
                f"0. Received: {length!r}"
            )
        object.__setattr__(
            self, "output_shape", tf.TensorShape(self.output_shape)
        )
        if not isinstance(self.validate_weights_and_indices, bool):
            raise errors.ArgumentError(
                "Argument `validate_weights_and_indices` must be a boolean. "
                f"Received: {self.validate_weights_and_indices!r}"
            )
