"""Where a step may be taken: in eager mode, a function, or its graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.ops.private import in_session_graph, orders_by_itself

__all__ = ["check_graph", "current_graph"]


def current_graph() -> Any:
    """The graph of TensorFlow 1 that is being built, or None in eager mode."""
    with tf.init_scope():
        if tf.executing_eagerly():
            return None
        return tf.compat.v1.get_default_graph()


def check_graph(graph: Any) -> None:
    """Refuses a step that no session could run as it is meant.

    Args:
      graph: where the optimizer was made, `current_graph()` there.

    Raises:
      tfembed.errors.UnsupportedError: the branch or loop of a graph, or several
        replicas.
      tfembed.errors.StateError: the optimizer was made elsewhere.
    """
    if orders_by_itself():
        return
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
