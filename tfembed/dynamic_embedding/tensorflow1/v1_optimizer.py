"""`DynamicEmbeddingOptimizer` over an optimizer of tf.compat.v1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.tensorflow1.graph_steps import (
    GraphOptions,
)
from tfembed.dynamic_embedding.training.optimizer import TableTrainer
from tfembed.dynamic_embedding.training.slot_variable import slot_called
from tfembed.dynamic_embedding.training.step_gradients import (
    is_of_a_table,
    variable_of,
)

__all__ = ["V1TableOptimizer"]


class V1TableOptimizer(TableTrainer):
    """An optimizer with the methods, and their arguments, of tf.compat.v1.

    It works in eager mode, tf.functions and graphs of TensorFlow 1, as
    `TableOptimizer` does.
    """

    def minimize(
        self,
        loss: Any,
        global_step: Any = None,
        var_list: Any = None,
        gate_gradients: int = 1,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Any = None,
        *,
        tape: tf.GradientTape | None = None,
    ) -> Any:
        """Computes gradients and applies them.

        Args:
          loss: a function without arguments; or its result, with `tape` or in a
            graph of TensorFlow 1.
          global_step: a variable that counts steps; or `var_list`, which other
            optimizers have in this position.
          var_list: variables in any structure, or a function that returns them,
            called after `loss`; None: the trainable variables that `loss` uses,
            in a graph also its other trainable dense variables.
          gate_gradients, aggregation_method, colocate_gradients_with_ops: for
            graphs of TensorFlow 1; ignored elsewhere.
          name: the name of the step.
          grad_loss: gradient of the loss itself; None: 1.
          tape: the tape that recorded `loss`.

        Returns:
          The loss; in a graph of TensorFlow 1 the operation of the step.
        """
        if var_list is None and _are_variables(global_step):
            global_step, var_list = None, global_step
        value, pairs = self.compute(
            loss,
            var_list,
            tape=tape,
            grad_loss=grad_loss,
            options=GraphOptions(
                gate_gradients, aggregation_method, colocate_gradients_with_ops
            ),
        )
        step = self.apply_gradients(pairs, global_step, name)
        return value if step is None else step

    def compute_gradients(
        self,
        loss: Any,
        var_list: Any = None,
        gate_gradients: int = 1,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
        *,
        tape: tf.GradientTape | None = None,
    ) -> list[tuple[Any, Any]]:
        """Returns pairs of a gradient, or None, and its variable.

        The pairs are for `apply_gradients`; the arguments are as in `minimize`.
        """
        _, pairs = self.compute(
            loss,
            var_list,
            tape=tape,
            grad_loss=grad_loss,
            options=GraphOptions(
                gate_gradients, aggregation_method, colocate_gradients_with_ops
            ),
        )
        return pairs

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
    ) -> tf.Operation | None:
        """Takes one step, as `TableOptimizer.apply_gradients`."""
        if isinstance(global_step, str):  # Other optimizers have `name` here.
            global_step, name = None, global_step
        return self.take_step(
            grads_and_vars, name=name, global_step=global_step
        )

    def __repr__(self) -> str:  # What `compile` says that it cannot interpret.
        return (
            f"<DynamicEmbeddingOptimizer over {type(self._opt).__name__} of "
            "TensorFlow 1; a model's `compile` takes one over an optimizer of its "
            "own Keras>"
        )

    def get_name(self) -> str:
        """Returns the optimizer's name."""
        return self._wrapped.name

    def __getattr__(self, name: str) -> Any:
        """Returns `get_slot_names`, `get_slot` or the optimizer's attributes.

        The first two are not methods: a checkpoint saves the slots of an object
        that has them. Tables save their own slots, and the wrapped optimizer
        saves those of dense variables.
        """
        if name in ("get_slot_names", "get_slot"):
            return getattr(self, f"_{name}")
        return super().__getattr__(name)

    def _get_slot_names(self) -> list[str]:
        """Returns the optimizer's names of slots, of tables and variables."""
        return sorted({*self.slot_labels(), *self._opt.get_slot_names()})

    def _get_slot(self, var: Any, name: str) -> Any:
        """Returns the slot called `name` of a variable, or None.

        Args:
          var: a `Variable`, a `TrainableWrapper` of one, or a dense variable.
          name: a name from `get_slot_names`.

        Returns:
          For a table a `TableSlot`, whose `params` is a view; else the slot's
          variable.
        """
        if not is_of_a_table(var):
            return self._opt.get_slot(var, name)
        return slot_called(self, variable_of(var), name)


def _are_variables(value: Any) -> bool:
    if callable(value):
        return True
    return isinstance(value, Iterable) and not isinstance(value, tf.Variable)
