"""The shapes of activations, for Keras' functional models."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfembed import errors

__all__ = ["output_specs"]


def output_specs(feature_config: Any, inputs: Any, dtype: str) -> Any:
    """One KerasTensor per feature.

    Args:
      feature_config: a structure of FeatureConfigs.
      inputs: KerasTensors, structured so.
      dtype: of the activations.

    Raises:
      ValueError, TypeError: another structure.
      tfembed.errors.ArgumentError: an input without batch dimension.
    """
    tf.nest.assert_same_structure(feature_config, inputs)
    return tf.nest.map_structure(
        lambda feature, value: keras.KerasTensor(
            _shape(feature, tuple(value.shape)), dtype
        ),
        feature_config,
        inputs,
    )


def _shape(feature: Any, shape: tuple[int | None, ...]) -> tuple[Any, ...]:
    if not shape:
        raise errors.ArgumentError(
            "An input must have a batch dimension; got a scalar. Use "
            "keras.Input(shape=(), dtype='int64') for one id a sample."
        )
    lead = shape[:1] if len(shape) <= 2 else shape[:-1]
    if len(shape) == 2 and feature.max_sequence_length:
        lead = (*lead, feature.max_sequence_length)
    return (*lead, feature.table.dim)
