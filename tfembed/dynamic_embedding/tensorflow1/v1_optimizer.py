"""`DynamicEmbeddingOptimizer` over an optimizer of tf.compat.v1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.tensorflow1.graph_steps import (
    GraphOptions,
    check_graph,
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
          loss: a function without arguments; or, with `tape` and in a graph of
            TensorFlow 1, its result.
          global_step: a variable that counts steps; or, as other optimizers
            take it in this place, `var_list`.
          var_list: a variable or a structure of some, or a function that returns
            that and is called after `loss`; None: the trainable variables that
            `loss` uses, in a graph those that the graph has.
          gate_gradients, aggregation_method, colocate_gradients_with_ops: for
            graphs of TensorFlow 1; elsewhere accepted.
          name: the name of the step.
          grad_loss: gradient of the loss itself; None: 1.
          tape: what recorded `loss`.

        Returns:
          The loss; in a graph of TensorFlow 1 the operation that is the step.
        """
        if var_list is None and _are_variables(global_step):
            global_step, var_list = None, global_step
        check_graph(self._graph)
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
        """Pairs of a gradient, or None, and its variable, for `apply_gradients`.

        Args: as in `minimize`.
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
        """Takes one step: `TableOptimizer.apply_gradients`."""
        if isinstance(global_step, str):  # Other optimizers take it there.
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
        """The optimizer's name."""
        return self._wrapped.name

    def __getattr__(self, name: str) -> Any:
        """`get_slot_names`, `get_slot`, and what the optimizer itself has.

        Not methods: checkpoints take what has these for an owner of slots, of
        which tables are no part and the wrapped optimizer's are saved with it.
        """
        if name in ("get_slot_names", "get_slot"):
            return getattr(self, f"_{name}")
        return super().__getattr__(name)

    def _get_slot_names(self) -> list[str]:
        """The optimizer's own names of slots, of tables and variables."""
        return sorted({*self.slot_labels(), *self._opt.get_slot_names()})

    def _get_slot(self, var: Any, name: str) -> Any:
        """The slot called `name` of a variable, or None.

        Args:
          var: a `Variable`, a `TrainableWrapper` of one, or a dense variable.
          name: one of `get_slot_names`.

        Returns:
          Of tables a `TableSlot`, whose `params` is a view; else the variable.
        """
        if not is_of_a_table(var):
            return self._opt.get_slot(var, name)
        return slot_called(self, variable_of(var), name)


def _are_variables(value: Any) -> bool:
    if callable(value):
        return True
    return isinstance(value, Iterable) and not isinstance(value, tf.Variable)
