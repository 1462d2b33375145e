"""The shapes of activations, for Keras' functional models."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfembed import errors
from tfembed.embedding.plan import feature_names

__all__ = ["output_specs"]


def output_specs(feature_config: Any, inputs: Any, dtype: str) -> Any:
    """One KerasTensor per feature.

    Args:
      feature_config: a structure of FeatureConfigs.
      inputs: KerasTensors, structured so.
      dtype: of the activations.

    Raises:
      ValueError, TypeError: another structure.
      tfembed.errors.ArgumentError: an input without batch dimension, or a dense
        one of rank 3 or above.
    """
    tf.nest.assert_same_structure(feature_config, inputs)
    specs = [
        keras.KerasTensor(_shape(feature, value, path), dtype)
        for feature, value, path in zip(
            tf.nest.flatten(feature_config),
            tf.nest.flatten(inputs),
            feature_names(feature_config),
            strict=True,
        )
    ]
    return tf.nest.pack_sequence_as(feature_config, specs)


def _shape(feature: Any, value: Any, path: str) -> tuple[Any, ...]:
    shape = tuple(value.shape)
    if not shape:
        raise errors.ArgumentError(
            "An input must have a batch dimension; got a scalar. Use "
            "keras.Input(shape=(), dtype='int64') for one id a sample."
        )
    if len(shape) > 2 and not _is_composite(value):
        raise errors.ArgumentError(
            f"Only dense tensors of rank 1 and 2 are supported, found rank "
            f"{len(shape)} for input {path}"
        )
    lead = shape[:1] if len(shape) <= 2 else shape[:-1]
    if len(shape) == 2 and feature.max_sequence_length:
        lead = (*lead, feature.max_sequence_length)
    return (*lead, feature.table.dim)


def _is_composite(value: Any) -> bool:
    # Older releases of Keras have no ragged ones.
    return value.sparse or getattr(value, "ragged", False)
