"""Differences of graphs of TensorFlow 1, which sessions run.

Only this module and `dynamic_embedding/tensorflow1` check whether ops are made
in such a graph. Other modules call these functions, which handle both cases.
"""

from __future__ import annotations

import uuid
from typing import Any

import tensorflow as tf

from tfembed.ops.private import in_session_graph

__all__ = ["current_graph", "resource_name", "unless_fetched"]


def current_graph() -> Any:
    """Returns the current graph of TensorFlow 1; None in eager mode."""
    with tf.init_scope():
        if tf.executing_eagerly():
            return None
        return tf.compat.v1.get_default_graph()


def resource_name() -> str:
    """Returns a name for a new resource; "" if its handle is enough.

    A graph that sessions run executes the creation in each run, and finds the
    resource again by its name. A function makes a new one for each copy of a
    model.
    """
    return f"tfembed_{uuid.uuid4().hex}" if in_session_graph() else ""


def unless_fetched(part: Any) -> Any:
    """Returns a part of a structure that is no tensor; None for sessions.

    Sessions fetch structures of tensors alone.
    """
    return None if in_session_graph() else part
