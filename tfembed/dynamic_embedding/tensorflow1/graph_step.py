"""Steps in graphs of TensorFlow 1: operations that sessions run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.foreign_optimizers.key_sums import TableGradient
from tfembed.foreign_optimizers.wrapped_optimizer import WrappedOptimizer
from tfembed.ops.private import in_order

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

    Tables move once all gradients are there, as these may read their rows.

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

    def move() -> tf.Tensor:
        # Where tables and variables are, whatever a device scope says of ops.
        with tf.device(None):
            count = update(list(sparse))
            if not dense:
                with tf.control_dependencies([count]):
                    wrapped.finish()
            return count

    done: list[Any] = []
    if sparse:
        # What tf.gradients gives may read rows for a dense variable alone.
        given = [gradient for gradient, _ in dense if tf.is_tensor(gradient)]
        with tf.control_dependencies(given):
            done = [in_order(move)]
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
