"""The weight that stands for a table in a Keras model's list of weights."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.lookups.gradient_source import (
    TableSource,
    WatchedTable,
)
from tfembed.dynamic_embedding.variables.variable import Variable

__all__ = ["SourceWeight", "TableVariable"]


class SourceWeight(keras.Variable, TableSource):
    """A weight of Keras that is a source of gradients for TensorFlow too.

    Keras' own cannot be watched by a tape, nor have zeros for a gradient: one
    takes their `value` there.
    """

    @property
    def dtype(self) -> str:
        """The weight's dtype, as Keras names it."""
        return _Dtype(super().dtype)


class _Dtype(str):
    """The name of a dtype, which tapes take for the dtype."""

    @property
    def is_floating(self) -> bool:
        """Whether it is one of floats."""
        return bool(tf.as_dtype(str(self)).is_floating)

    @property
    def _type_enum(self) -> int:
        return int(tf.as_dtype(str(self)).as_datatype_enum)


class TableVariable(SourceWeight):
    """A weight of shape [0, dim] that stands for a table of any size.

    Keras' trainer asks a tape for the gradients of a model's trainable weights
    and gives both to the optimizer. This weight has the table's resource handle,
    so its gradient is the `tf.IndexedSlices` by key of all lookups of the step;
    `DynamicEmbeddingOptimizer` takes the weight for its table. It has no rows of
    its own: they are in `params`, and are saved by the layer.

    Args:
      params: the table.
      trainable: whether the layer is.
      name: of the weight.
      is_implied: whether the table is no weight that a layer made, but one that
        a layer looks up. Optimizers leave such a weight out where the table is
        given too.
    """

    def __init__(
        self,
        params: Variable,
        *,
        trainable: bool,
        name: str,
        is_implied: bool = False,
    ) -> None:
        self._params = params
        self.is_implied = is_implied
        super().__init__(
            initializer="zeros",
            shape=(0, params.dim),
            dtype="float32",
            trainable=trainable,
            name=name,
        )
        # Keras' optimizers make no slots for such weights and `assign` the
        # gradient to them. So one that knows nothing of tables ends in `assign`.
        self.overwrite_with_gradient = True

    @property
    def params(self) -> Variable:
        """The table."""
        return self._params

    @property
    def handle(self) -> tf.Tensor:
        """The resource that gradients of lookups go to."""
        return self._params.handle

    @property
    def watched(self) -> WatchedTable:
        """The table's: what a tape watches for this weight."""
        return self._params.watched

    @property
    def key_dtype(self) -> tf.DType:
        """Dtype of the table's keys."""
        return self._params.key_dtype

    @property
    def dim(self) -> int:
        """Width of a row."""
        return self._params.dim

    def assign(self, value: Any) -> Any:
        """Takes an array of shape [0, dim], as `get_weights` gives.

        A warning tells that the rows stay, since whoever sets a model's weights
        may mean them too.

        Raises:
          tfembed.errors.UnsupportedError: a gradient, from an optimizer that
            does not train tables. For a weight that `is_implied` a warning.
        """
        if isinstance(value, tf.IndexedSlices) and self.is_implied:
            warnings.warn(self._not_alone(), stacklevel=2)
            return self
        if isinstance(value, tf.IndexedSlices):
            raise errors.UnsupportedError(self._not_alone())
        warnings.warn(
            f"The weights that are being set hold no rows of "
            f"'{self._params.name}', which stay as they are. Use files, as "
            "`save_weights` and `load_weights` do.",
            stacklevel=2,
        )
        return super().assign(value)

    @property
    def _unique_id(self) -> str:
        """An attribute that tf_keras' optimizers ask for; it may be missing."""
        raise AttributeError(self._not_alone())

    def _not_alone(self) -> str:
        return (
            f"A Keras optimizer alone cannot train the table "
            f"'{self._params.name}'. Wrap it: compile(optimizer="
            "tfembed.dynamic_embedding.DynamicEmbeddingOptimizer(...))."
        )
