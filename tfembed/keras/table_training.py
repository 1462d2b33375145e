"""Training of a table in the steps of a plain Keras optimizer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors, ops
from tfembed.dynamic_embedding.keras.private import (
    model_stepping,
    optimizer_stepping,
)
from tfembed.dynamic_embedding.keras.table_layer import TableLayer
from tfembed.dynamic_embedding.training.optimizer import TableOptimizer
from tfembed.keras.model_optimizer import ModelOptimizer, OwnRates

__all__ = ["TableTraining"]


class TableTraining:
    """Updates the rows of one table by the gradients that Keras passes on.

    A Keras optimizer assigns the gradient to a weight with
    `overwrite_with_gradient`. This assignment updates the rows, by the rule and
    learning rate of the optimizer that takes the step, or by the table's own
    optimizer.

    Args:
      layer: the layer of `dynamic_embedding` that has the table.
      optimizer: the table's optimizer, of Keras or `tfembed.optimizers`, or
        None.

    Attributes:
      own: the TableOptimizer over the table's own optimizer, or None.

    Raises:
      tfembed.errors.UnsupportedError: an optimizer that cannot train tables.
    """

    def __init__(self, layer: TableLayer, optimizer: Any = None) -> None:
        self._layer = layer
        self.own = None if optimizer is None else TableOptimizer(optimizer)
        self._model = ModelOptimizer(layer.name, OwnRates((layer.params.name,)))
        # The last optimizer of a step, and a TableOptimizer with its update.
        self._followed: tuple[Any, TableOptimizer] | None = None

    def __call__(self, gradient: tf.IndexedSlices) -> None:
        """Updates the rows of a step.

        Raises:
          tfembed.errors.StateError: no optimizer of Keras takes a step, and the
            table has none of its own.
          tfembed.errors.UnsupportedError: an optimizer that cannot train
            tables, or as `TableVariable.by_key`.
          tfembed.errors.ArgumentError: as `TableVariable.train_by`.
        """
        gradient = self._layer.weight.by_key(gradient)
        if self.own is not None:
            if (optimizer := optimizer_stepping()) is not None:
                self._model.note(optimizer)
                gradient = _unscaled(gradient, optimizer.loss_scale_factor)
            self._attach(self.own.optimizer, self.own, is_own=True)
            self.own.apply_gradients([(gradient, self._layer.params)])
            return
        optimizer = optimizer_stepping()
        if optimizer is None:
            raise errors.StateError(
                f"A gradient of table '{self._layer.params.name}' came from no Keras "
                "optimizer, whose rule it trains by. Call `optimizer."
                "apply_gradients`, or give the layer an `optimizer` of its own."
            )
        follower = self._follower(optimizer)
        self._attach(optimizer, follower)
        follower.move_tables([(gradient, self._layer.params)])

    def take(self, optimizer: Any) -> None:
        """Takes another optimizer of the table alone, or None.

        Raises:
          tfembed.errors.UnsupportedError: one that cannot train tables.
        """
        self.own = None if optimizer is None else TableOptimizer(optimizer)
        self._layer.weight.trace_again()

    def check_step(self) -> None:
        """Refuses options that change gradients before they are passed on.

        Raises:
          tfembed.errors.UnsupportedError: the model's optimizer accumulates
            gradients.
        """
        if ops.tape_records():
            optimizer = getattr(model_stepping(), "optimizer", None)
            if getattr(optimizer, "gradient_accumulation_steps", None):
                TableOptimizer(
                    optimizer
                )  # Raises an error that says what to do instead.

    def _attach(
        self, optimizer: Any, engine: TableOptimizer, *, is_own: bool = False
    ) -> None:
        """Has an optimizer train the table, whose files have its state."""
        self._layer.weight.train_by(optimizer, engine, is_own=is_own)
        with tf.init_scope():
            self._layer.params.table.rule_state.bind(engine.rule_state)

    def _follower(self, optimizer: Any) -> TableOptimizer:
        """Returns the TableOptimizer with the update of `optimizer`."""
        if self._followed is None or self._followed[0] is not optimizer:
            if optimizer.global_clipnorm:
                raise errors.UnsupportedError(
                    f"{type(optimizer).__name__}(global_clipnorm="
                    f"{optimizer.global_clipnorm}) takes a norm over all "
                    "gradients, and Keras leaves those of tables out. Compile "
                    "with tfembed.dynamic_embedding.DynamicEmbeddingOptimizer("
                    "...) over it, or use `clipnorm`."
                )
            self._followed = (optimizer, TableOptimizer(optimizer))
        return self._followed[1]


def _unscaled(
    gradient: tf.IndexedSlices, factor: float | None
) -> tf.IndexedSlices:
    """Divides by the `loss_scale_factor` of the optimizer that takes the step.

    Keras divides the gradients of other weights alone.
    """
    if not factor:
        return gradient
    return tf.IndexedSlices(gradient.values / factor, gradient.indices)
