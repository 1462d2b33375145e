"""The model's optimizer, for layers whose tables have other optimizers."""

from __future__ import annotations

import dataclasses
import warnings
import weakref
from typing import Any

import keras
import tensorflow as tf

from tfembed import errors, ops
from tfembed.dynamic_embedding.keras.private import (
    callbacks_running,
    model_stepping,
)
from tfembed.embedding.steps.table_rates import TableRates
from tfembed.optimizers.interface import variable_of

__all__ = ["ModelOptimizer", "OwnRates"]

# Option of a Keras optimizer -> how tables are handled instead.
_LEFT_OUT = {
    "use_ema": "have no moving averages, so SwapEMAWeights, and the end of a fit, "
    "leave their rows as they are",
    "gradient_accumulation_steps": "move in each step, by its gradients alone",
}
_SETTERS = (
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
)


@dataclasses.dataclass(frozen=True)
class OwnRates:
    """The rates of a layer whose tables all have their own optimizers.

    Attributes:
      own: the names of the tables.
      following: the names of tables that follow the model; none.
    """

    own: tuple[str, ...]
    following: tuple[str, ...] = ()

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of the tables."""
        return self.own


class ModelOptimizer:
    """The optimizer of the model whose step calls a layer.

    Tables with `learning_rate=None` have its learning rate. Options that it
    applies to weights but not to tables cause one warning, which names the
    tables.

    Args:
      layer: the name of the layer.
      rates: the rates of the layer's tables.
    """

    def __init__(self, layer: str, rates: TableRates | OwnRates) -> None:
        self._layer = layer
        self._rates = rates
        self._of_step: Any = lambda: None
        # The optimizer's rate when it was found.
        self._first: float | None = None
        self._told: set[str] = set()

    def note_call(self) -> None:
        """Finds the optimizer, in a training call of the layer.

        A traced function needs this only in its trace.
        """
        optimizer = None
        if ops.tape_records():
            optimizer = getattr(model_stepping(), "optimizer", None)
        if optimizer is not None:
            self.note(optimizer)

    def note(self, optimizer: Any) -> None:
        """Sets the model's optimizer: the Keras optimizer that takes a step."""
        if optimizer is not self._of_step():
            self._of_step = weakref.ref(optimizer)
            self._first = None
            self._check_options(optimizer)
        self._watch(optimizer)

    def learning_rate(self) -> tf.Tensor:
        """Returns the learning rate of the optimizer's next step.

        Raises:
          tfembed.errors.StateError: no model with an optimizer takes a step.
        """
        optimizer = self._of_step()
        if optimizer is None:
            raise errors.StateError(
                f"Tables {list(self._rates.following)} of layer '{self._layer}' "
                "have learning_rate=None, the rate of the optimizer of a "
                "compiled model, and none takes a step. Compile the model; in a "
                "loop of your own, call `layer.embedding.follow_learning_rate("
                "lambda: optimizer.learning_rate)`; or give a number."
            )
        return tf.convert_to_tensor(optimizer.learning_rate)

    def say_moved_by_gradient(self) -> None:
        """Warns once that gradients move rows, whether applied or not."""
        self._tell(
            "gradient",
            self._rates.trained,
            "move when a tape takes the gradient of the layer's weight, before "
            "an optimizer applies it: in a loop of your own under a strategy "
            "with several replicas. Call the layer with training=False for "
            "gradients that must not train.",
        )

    def _check_options(self, optimizer: Any) -> None:
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        for option, what_tables_do in _LEFT_OUT.items():
            value = getattr(inner, option, None)
            if value:
                self._tell(
                    option,
                    self._rates.trained,
                    f"{what_tables_do}: {type(inner).__name__}({option}={value}) "
                    "is the optimizer of the model, and tables have their own.",
                )

    def _watch(self, optimizer: Any) -> None:
        """Warns of tables that do not follow a changed learning rate."""
        tables = self._rates.own
        if not tables or "rate" in self._told:
            return
        rate = optimizer.learning_rate
        if not isinstance(rate, (keras.Variable, tf.Variable)):
            self._tell_of_rate("A schedule sets")
            return
        setters = [c for c in callbacks_running() if isinstance(c, _SETTERS)]
        if setters:
            self._tell_of_rate(type(setters[0]).__name__ + " sets")
            return
        variable = variable_of(rate)
        if variable is None:  # Cast, by mixed_float16.
            return
        if self._first is None:
            with tf.init_scope():
                self._first = float(tf.convert_to_tensor(variable))

        def tell() -> tf.Tensor:
            return tf.numpy_function(self._tell_of_change, [], tf.int64)

        # Later steps of a function do not run Python.
        tf.cond(
            tf.equal(tf.cast(variable, tf.float32), self._first),
            lambda: tf.constant(0, tf.int64),
            tell,
        )

    def _tell_of_change(self) -> Any:
        self._tell_of_rate("The program has changed")
        return tf.constant(1, tf.int64).numpy()

    def _tell_of_rate(self, who_does: str) -> None:
        self._tell(
            "rate",
            self._rates.own,
            f"have learning rates of their own, which stay: {who_does} that of "
            "the model's optimizer. Give the tables an optimizer with "
            "learning_rate=None, and they follow it.",
        )

    def _tell(self, what: str, tables: Any, text: str) -> None:
        if what in self._told or not tables:
            return
        self._told.add(what)
        warnings.warn(
            f"Tables {list(tables)} of layer '{self._layer}' {text}",
            stacklevel=2,
        )
