"""Training of a table in the steps of a plain Keras optimizer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors, ops
from tfembed.dynamic_embedding.keras.private import model_stepping, running_step
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
        # It has the update of the last optimizer of a step.
        self._followed: TableOptimizer | None = None

    def __call__(self, gradient: tf.IndexedSlices) -> None:
        """Updates the rows of a step.

        Raises:
          tfembed.errors.StateError: no optimizer of Keras takes a step, and the
            table has none of its own.
          tfembed.errors.UnsupportedError: an optimizer that cannot train
            tables, or as `TableVariable.by_key`.
          tfembed.errors.ArgumentError: as `TableVariable.train_by`.
        """
        step, params = running_step(), self._layer.params
        gradient = self._layer.weight.by_key(gradient, step.scaler)
        trainer = self.own or self._follower(step.optimizer)
        if self.own is not None and step.optimizer is not None:
            self._model.note(step.optimizer)
            gradient = _unscaled(gradient, step.optimizer.loss_scale_factor)
        self._layer.weight.train_by(
            trainer.optimizer, trainer, step, is_own=self.own is not None
        )
        with tf.init_scope():  # Files of the table have the trainer's state.
            params.table.rule_state.bind(trainer.rule_state)
        if self.own is None:
            trainer.move_table(gradient, params)
        else:
            trainer.apply_gradients([(gradient, params)])

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
                TableOptimizer(optimizer)  # Raises: says what to do instead.

    def _follower(self, optimizer: Any) -> TableOptimizer:
        """Returns the TableOptimizer with the update of `optimizer`."""
        if optimizer is None:
            raise errors.StateError(
                f"A gradient of table '{self._layer.params.name}' came from no Keras "
                "optimizer, whose rule it trains by. Call `optimizer."
                "apply_gradients`, or give the layer an `optimizer` of its own."
            )
        if self._followed is None or self._followed.optimizer is not optimizer:
            if optimizer.global_clipnorm:
                raise errors.UnsupportedError(
                    f"{type(optimizer).__name__}(global_clipnorm="
                    f"{optimizer.global_clipnorm}) takes a norm over all "
                    "gradients, and Keras leaves those of tables out. Compile "
                    "with tfembed.dynamic_embedding.DynamicEmbeddingOptimizer("
                    "...) over it, or use `clipnorm`."
                )
            self._followed = TableOptimizer(optimizer)
        return self._followed


def _unscaled(
    gradient: tf.IndexedSlices, factor: float | None
) -> tf.IndexedSlices:
    """Divides by the `loss_scale_factor` of the optimizer that takes the step.

    Keras divides the gradients of other weights alone.
    """
    if not factor:
        return gradient
    return tf.IndexedSlices(gradient.values / factor, gradient.indices)
