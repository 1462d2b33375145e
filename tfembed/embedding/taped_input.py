"""One feature's input, as V0 reads it for an op of its own or for a program."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfembed.embedding.features.inputs import read_input
from tfembed.embedding.features.output_shapes import (
    is_sequence,
    warn_if_ignored,
)
from tfembed.embedding.features.pooling import sequence_length_of
from tfembed.ops import FeatureIds

__all__ = ["TapedInput", "read_taped"]


@dataclasses.dataclass(frozen=True, eq=False)
class TapedInput:
    """One feature's input.

    Attributes:
      ids: its tensors, with one batch dimension.
      sequence_length: of each sample; 0 combines its ids.
      lead: the activations' shape without the width of rows, as far as it is
        known before anything runs.
    """

    ids: FeatureIds
    sequence_length: int
    lead: tf.TensorShape


def read_taped(value: Any, weights: Any, feature: Any, path: str) -> TapedInput:
    """Reads an input that `check_input` has passed.

    Args:
      value: a Tensor, SparseTensor or RaggedTensor of ids.
      weights: None or its weights; sequences have none, but where an output
        shape makes them, which leaves weights out.
      feature: its FeatureConfig.
      path: what errors call it.

    Raises:
      tfembed.errors.ArgumentError: an output shape that does not fit.
      tfembed.errors.DtypeError: weights that are no numbers.
    """
    shape, length = value.shape, 0
    lead = shape if isinstance(value, tf.Tensor) else shape[:-1]
    if not isinstance(value, tf.Tensor) and shape.rank == 2:
        if is_sequence(feature) or isinstance(value, tf.SparseTensor):
            length = feature.max_sequence_length
        if feature.output_shape and isinstance(value, tf.RaggedTensor):
            length = sequence_length_of(shape[0], feature.output_shape, path)
            lead = feature.output_shape
        elif length:
            lead = lead.concatenate(length)
    if isinstance(value, tf.SparseTensor):
        warn_if_ignored(feature, shape.rank, path)
    ids = read_input(value, weights, path, feature.table)
    if length:
        ids = dataclasses.replace(ids, weights=tf.zeros([0], tf.float32))
    return TapedInput(ids, length, lead)
