"""Handling of floats that Keras passes in place of ids.

When Keras loads a model without keras.Input, it builds the model by tracing its
`call` with floats of the saved shapes. Such a trace is allowed and uses
placeholder ids; a function that runs with floats is refused, and so is an
export.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfembed import errors, ops
from tfembed.dynamic_embedding.keras import layer_config

__all__ = ["LayerKeys", "as_ids", "stand_in"]


def as_ids(value: Any, key_dtype: tf.DType | None, layer: str) -> Any:
    """Converts lists of any depth, numbers, arrays and text to a tensor of ids.

    Lists that differ in length become a tf.RaggedTensor. A structure that
    contains tensors is returned unchanged.

    Args:
      value: the ids.
      key_dtype: the dtype for lists without ids, which TensorFlow takes for
        floats; None if the key dtype is not known yet: then they stay floats.
      layer: the name of the layer, for errors.

    Raises:
      tfembed.errors.DtypeError: a value that cannot be converted, or integers
        mixed with strings.
    """
    if isinstance(value, tf.Tensor) or any(
        isinstance(one, keras.KerasTensor) or tf.is_tensor(one)
        for one in tf.nest.flatten(value)
    ):
        return value
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.tolist()
    try:
        ids = _tensor(value)
    except (TypeError, ValueError) as error:
        text = repr(value)
        raise errors.DtypeError(
            f"Ids of layer '{layer}' must be integers or strings, not both, in "
            "a tensor, an array or lists; got "
            f"{text if len(text) <= 60 else text[:57] + '...'}."
        ) from error
    if isinstance(ids, tf.RaggedTensor):
        return ids
    has_ids = ids.shape.num_elements() > 0
    if has_ids or key_dtype is None or not ids.dtype.is_floating:
        return ids
    return tf.zeros(ids.shape, key_dtype)


def _tensor(value: Any) -> tf.Tensor | tf.RaggedTensor:
    try:
        return tf.convert_to_tensor(value)
    except ValueError as error:
        if "non-rectangular" not in str(error):
            raise
        return tf.ragged.constant(value)


@dataclasses.dataclass(frozen=True)
class LayerKeys:
    """Converts the ids that a layer looks up to keys.

    Attributes:
      layer: the layer's name.
      dtype: the dtype of the table's keys.
    """

    layer: str
    dtype: tf.DType

    def __call__(self, ids: Any) -> tf.Tensor:
        """Converts dense `ids` to keys: widens integers, `stand_in` for floats.

        Raises:
          tfembed.errors.DtypeError: ids that cannot be keys of the table.
        """
        if isinstance(ids, tf.SparseTensor):
            raise errors.DtypeError(
                f"Ids of layer '{self.layer}' must be dense or ragged; got a "
                "SparseTensor. Give it tf.RaggedTensor.from_sparse(ids)."
            )
        ids = tf.convert_to_tensor(ids)
        if self._are_keys(ids.dtype):
            return tf.cast(ids, self.dtype) if ids.dtype != self.dtype else ids
        return stand_in(ids, self.dtype, self._complaint(ids.dtype))

    def check(self, dtype: tf.DType) -> None:
        """Checks the dtype of the ids of a model that is being built.

        Raises:
          tfembed.errors.UnsupportedError: floats. It is a NotImplementedError,
            so that a Sequential model inside of another waits for ids.
          tfembed.errors.DtypeError: another dtype that keys cannot have.
        """
        if self._are_keys(dtype):
            return
        kind = (
            errors.UnsupportedError if dtype.is_floating else errors.DtypeError
        )
        raise kind(self._complaint(dtype))

    def _are_keys(self, dtype: tf.DType) -> bool:
        is_integer = dtype.is_integer and self.dtype.is_integer
        return bool(dtype == self.dtype or is_integer)

    def _complaint(self, dtype: tf.DType) -> str:
        wanted = self.dtype.name
        return (
            f"Ids of layer '{self.layer}' must be {wanted}; got {dtype.name}. "
            "Begin the model, and each Sequential inside of it, with "
            f"keras.Input(shape, dtype='{wanted}')."
        )


def stand_in(value: tf.Tensor, dtype: tf.DType, complaint: str) -> tf.Tensor:
    """Makes placeholder ids: zeros shaped like `value` that fail when they run.

    Keras' export refuses a function that has placeholder ids.

    Raises:
      tfembed.errors.DtypeError: `complaint`, outside of traces and in traces
        that must refuse floats too.
      tf.errors.InvalidArgumentError: `complaint`, when the function runs.
    """
    if tf.executing_eagerly() or layer_config.FLOAT_IDS_REFUSED.get():
        raise errors.DtypeError(complaint)
    ops.record_access(_mark())
    with tf.control_dependencies([tf.debugging.Assert(False, [complaint])]):
        zeros = tf.zeros(tf.shape(value), dtype)
    # Not constants: the sizes of packed features would not fit their ids.
    return tf.compat.v1.placeholder_with_default(zeros, value.shape)


class _Mark(tf.__internal__.tracking.AutoTrackable):
    """Marks functions with placeholder ids: they capture it like a variable."""

    # The attributes by which TensorFlow recognizes a variable.
    _should_act_as_resource_variable = True
    trainable = False

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        raise errors.ArgumentError(
            "`input_signature` of the exported model must be given: it has no "
            "keras.Input, so Keras takes its inputs for floats, which are no "
            "ids. For example: model.export(path, input_signature=["
            "{'user': tf.TensorSpec([None], tf.int64)}]), with tf.string for "
            "strings."
        )


@functools.cache
def _mark() -> _Mark:
    """Returns the single mark, cached: functions hold only weak references."""
    return _Mark()
