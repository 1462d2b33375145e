"""Gradients in graphs of TensorFlow 1, which have no tapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.lookups.trainable import TrainableWrapper
from tfembed.dynamic_embedding.tensorflow1.graph_variables import (
    trainable_variables,
)
from tfembed.dynamic_embedding.variables.variable import Variable

__all__ = ["GraphOptions", "graph_gradients"]

_GATE_OP = tf.compat.v1.train.Optimizer.GATE_OP
_GATE_GRAPH = tf.compat.v1.train.Optimizer.GATE_GRAPH


@dataclasses.dataclass(frozen=True)
class GraphOptions:
    """How gradients of a graph are made, as optimizers of tf.compat.v1 take it.

    Attributes:
      gate_gradients: GATE_NONE, GATE_OP or GATE_GRAPH of these.
      aggregation_method: of tf.AggregationMethod.
      colocate_gradients_with_ops: whether a gradient is on its op's device.
    """

    gate_gradients: int = _GATE_OP
    aggregation_method: Any = None
    colocate_gradients_with_ops: bool = False


def graph_gradients(
    loss: tf.Tensor,
    variables: list[Any] | None,
    grad_loss: Any,
    options: GraphOptions,
) -> list[tuple[Any, Any]]:
    """The gradient of a loss by each variable, or None where it has none.

    Gradients of tables are there once the loss is, so that a run that fetches
    the loss beside the step reads rows from before it: what is linear in its
    rows would have gradients without a lookup.

    Args:
      loss: a tensor of the current graph.
      variables: dense variables, `Variable`s and `TrainableWrapper`s; None: the
        graph's trainable variables, and those of its tables that the loss uses.
      grad_loss: gradient of the loss itself; None: 1.
      options: for TensorFlow.
    """
    given = _all_trainable() if variables is None else variables
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
    if variables is None:
        tables = {id(v) for v in trainable_variables()}
        pairs = [
            (g, v) for g, v in pairs if g is not None or id(v) not in tables
        ]
    return pairs


def _after_loss(gradients: list[Any], variables: list[Any]) -> list[Any]:
    """Has the gradients of tables wait for the current control dependencies.

    One that comes twice stays one.
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
    """The dense trainable variables, and each table in place of its wrappers."""
    listed = tf.compat.v1.trainable_variables()
    dense = [v for v in listed if not isinstance(v, TrainableWrapper)]
    return [*dense, *trainable_variables()]
