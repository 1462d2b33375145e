"""Steps in graphs of TensorFlow 1: operations that sessions run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.lookups.trainable import TrainableWrapper
from tfembed.dynamic_embedding.tensorflow1.graph_variables import (
    trainable_variables,
)
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.foreign_optimizers.table_gradients import TableGradient
from tfembed.foreign_optimizers.wrapped_optimizer import WrappedOptimizer
from tfembed.ops.private import in_order, in_session_graph

__all__ = ["GraphOptions", "GraphSteps", "check_graph"]

_GATE_OP = tf.compat.v1.train.Optimizer.GATE_OP
_GATE_GRAPH = tf.compat.v1.train.Optimizer.GATE_GRAPH


@dataclasses.dataclass(frozen=True)
class GraphOptions:
    """Options for the gradients of a graph, as in optimizers of tf.compat.v1.

    Attributes:
      gate_gradients: GATE_NONE, GATE_OP or GATE_GRAPH of those optimizers.
      aggregation_method: a tf.AggregationMethod.
      colocate_gradients_with_ops: whether a gradient is on its op's device.
    """

    gate_gradients: int = _GATE_OP
    aggregation_method: Any = None
    colocate_gradients_with_ops: bool = False


def check_graph(graph: Any) -> None:
    """Refuses a step that a session cannot run correctly.

    It is for ops that run only if a session needs them.

    Args:
      graph: the `session_graph.current_graph()` when the optimizer was made.

    Raises:
      tfembed.errors.UnsupportedError: the branch or loop of a graph, or several
        replicas.
      tfembed.errors.StateError: the optimizer was made elsewhere.
    """
    if not in_session_graph():
        raise errors.UnsupportedError(
            "DynamicEmbeddingOptimizer does not train inside of a branch or loop "
            "of a graph of TensorFlow 1 (tf.cond, tf.while_loop). Take the step "
            "outside of it, and run its operation when it is time to."
        )
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise errors.UnsupportedError(
            f"DynamicEmbeddingOptimizer does not train {replicas} replicas in a "
            "graph of TensorFlow 1. Train one there, or in eager mode."
        )
    if graph is not tf.compat.v1.get_default_graph():
        raise errors.StateError(
            "DynamicEmbeddingOptimizer was made outside of the graph of "
            "TensorFlow 1 that its step is for, which has none of its variables. "
            "Make it inside of the same `tf.Graph().as_default()`."
        )


class GraphSteps:
    """Makes the steps of a graph: each is an operation that a session runs.

    `DirectSteps` of `training/optimizer.py` has the same members, for eager
    mode and functions.

    Attributes:
      lists_all_dense: whether callers pass all dense variables, even those
        without a gradient.
      compares_values: whether the values of tensors are known, so that copies
        of a gradient can be recognized by them.
    """

    lists_all_dense = True
    compares_values = False

    def gradients(
        self,
        loss: Any,
        variables: Callable[[], list[Any] | None],
        *,
        tape: tf.GradientTape | None,
        grad_loss: Any,
        loss_scale: float | None,
        options: GraphOptions,
    ) -> tuple[Any, list[tuple[Any, Any]]]:
        """Returns a loss, and pairs of its gradient, or None, and a variable.

        Gradients of tables wait for the loss, so that a run that fetches loss
        and step reads the rows before the step. A loss that is linear in its
        rows has gradients that do not depend on the lookup.

        Args:
          loss: a tensor of the current graph, or a function that makes it.
          variables: a function that returns dense variables, `Variable`s and
            `TrainableWrapper`s, called after `loss`; None: the graph's
            trainable variables, and the tables that the loss uses.
          tape: not used: graphs are differentiated without a tape.
          grad_loss: gradient of the loss itself; None: 1.
          loss_scale: not used: no optimizer for graphs scales losses.
          options: options for TensorFlow.
        """
        del tape, loss_scale
        loss = loss() if callable(loss) else loss
        chosen = variables()
        given = _all_trainable() if chosen is None else chosen
        gradients = tf.compat.v1.gradients(
            loss,
            [getattr(v, "handle", v) for v in given],
            grad_ys=grad_loss,
            gate_gradients=options.gate_gradients == _GATE_OP,
            aggregation_method=options.aggregation_method,
            colocate_gradients_with_ops=options.colocate_gradients_with_ops,
        )
        if options.gate_gradients == _GATE_GRAPH:
            gradients = tf.compat.v1.tuple(gradients)
        with tf.control_dependencies(tf.nest.flatten(loss)):
            gradients = _after_loss(gradients, given)
        pairs = list(zip(gradients, given, strict=True))
        if chosen is None:
            tables = {id(v) for v in trainable_variables()}
            pairs = [
                (g, v) for g, v in pairs if g is not None or id(v) not in tables
            ]
        return loss, pairs

    def take(
        self,
        wrapped: WrappedOptimizer,
        update: Callable[[list[TableGradient]], tf.Tensor],
        sparse: Sequence[TableGradient],
        dense: Sequence[tuple[Any, Any]],
        *,
        waits_for_tables: bool,
        global_step: Any,
        name: str,
    ) -> tf.Operation:
        """Makes the operation of a step: updates tables, then dense variables.

        The update of tables waits for all gradients, as these may read rows.

        The operation is added to the graph's training operations, as
        TensorFlow's own optimizers do.

        Args:
          wrapped: the optimizer that updates dense variables and counts the
            step.
          update: the function that updates the tables.
          sparse: gradients of tables, by key.
          dense: gradients of dense variables.
          waits_for_tables: not used: dense variables always wait.
          global_step: a variable that counts steps too, or None.
          name: the name of the operation, and of its name scope.
        """
        del waits_for_tables

        def move() -> tf.Tensor:
            # On the devices of tables and variables, regardless of device
            # scopes.
            with tf.device(None):
                count = update(list(sparse))
                if not dense:
                    with tf.control_dependencies([count]):
                        wrapped.finish()
                return count

        done: list[Any] = []
        if sparse:
            # Gradients of dense variables may read rows too.
            given = [
                gradient for gradient, _ in dense if tf.is_tensor(gradient)
            ]
            with tf.control_dependencies(given):
                done = [in_order(move)]
        if dense:
            with tf.control_dependencies(done):
                done = [*done, *wrapped.apply_dense(dense)]
        if global_step is not None:
            with tf.control_dependencies(done):
                done = [*done, global_step.assign_add(1)]
        operation = tf.group(*done, name=name)
        keys = tf.compat.v1.GraphKeys
        listed = tf.compat.v1.get_collection_ref(keys.TRAIN_OP)
        # The parts of the step must not count as training operations.
        listed[:] = [one for one in listed if one not in done] + [operation]
        return operation


def _after_loss(gradients: list[Any], variables: list[Any]) -> list[Any]:
    """Makes the gradients of tables wait for the current control dependencies.

    A gradient that is listed twice stays one object.
    """
    waiting: dict[int, tf.IndexedSlices] = {}
    for gradient, variable in zip(gradients, variables, strict=True):
        is_of_a_table = isinstance(variable, (Variable, TrainableWrapper))
        if gradient is None or not is_of_a_table:
            continue
        if id(gradient.values) not in waiting:
            waiting[id(gradient.values)] = tf.IndexedSlices(
                tf.identity(gradient.values), gradient.indices
            )
    return [waiting.get(id(getattr(g, "values", g)), g) for g in gradients]


def _all_trainable() -> list[Any]:
    """Returns dense trainable variables, and tables in place of wrappers."""
    listed = tf.compat.v1.trainable_variables()
    dense = [v for v in listed if not isinstance(v, TrainableWrapper)]
    return [*dense, *trainable_variables()]
