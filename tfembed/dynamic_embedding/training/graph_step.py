"""Steps in graphs of TensorFlow 1: operations that sessions run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.training.key_sums import TableGradient
from tfembed.dynamic_embedding.training.wrapped_optimizer import (
    WrappedOptimizer,
)

__all__ = ["graph_step"]

_Update = Callable[[list[TableGradient]], tf.Tensor]


def graph_step(
    wrapped: WrappedOptimizer,
    update: _Update,
    sparse: Sequence[TableGradient],
    dense: Sequence[tuple[Any, Any]],
    *,
    global_step: Any,
    name: str,
) -> tf.Operation:
    """One step as what a session runs: dense variables move after the tables.

    It is listed with the graph's training operations, as those of TensorFlow's
    own optimizers are.

    Args:
      wrapped: what moves dense variables and counts the step.
      update: moves the tables.
      sparse: gradients of tables, by key.
      dense: those of dense variables.
      global_step: a variable that counts steps too, or None.
      name: of the operation; a name scope is one, too.
    """

    def move(gradients: list[TableGradient]) -> tf.Tensor:
        count = update(gradients)
        if not dense:
            with tf.control_dependencies([count]):
                wrapped.finish()
        return count

    done = [_call_as_function(move, sparse)] if sparse else []
    if dense:
        with tf.control_dependencies(done):
            done = [*done, *wrapped.apply_dense(dense)]
    if global_step is not None:
        with tf.control_dependencies(done):
            done = [*done, global_step.assign_add(1)]
    operation = tf.group(*done, name=name)
    listed = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
    # What the step is made of is no training operation of its own.
    listed[:] = [other for other in listed if other not in done] + [operation]
    return operation


def _call_as_function(
    update: _Update, gradients: Sequence[TableGradient]
) -> tf.Tensor:
    """Calls `update` in a function, which runs all of its ops and in order.

    A graph of TensorFlow 1 runs only what a fetch needs.
    """
    tables = [params for _, params in gradients]

    @tf.function(autograph=False)
    def step(*tensors: tf.Tensor) -> tf.Tensor:
        pairs = zip(tensors[::2], tensors[1::2], tables, strict=True)
        return update(
            [(tf.IndexedSlices(rows, keys), v) for keys, rows, v in pairs]
        )

    return step(*[x for g, _ in gradients for x in (g.indices, g.values)])
