"""Graphs of TensorFlow 1, which sessions run: what differs there for all rooms.

The seam: only this module and `dynamic_embedding/tensorflow1` ask whether ops are
made in such a graph. Others call what is here, and get what fits where they are.
"""

from __future__ import annotations

import uuid
from typing import Any

import tensorflow as tf

from tfembed.ops.private import in_session_graph

__all__ = ["current_graph", "resource_name"]


def current_graph() -> Any:
    """The graph of TensorFlow 1 that is being built, or None in eager mode."""
    with tf.init_scope():
        if tf.executing_eagerly():
            return None
        return tf.compat.v1.get_default_graph()


def resource_name() -> str:
    """A name for a resource that is being made: "" where its handle is enough.

    A graph that sessions run makes the resource anew in each run, and finds it
    again by the name. A function makes a new one for each copy of a model.
    """
    return f"tfembed_{uuid.uuid4().hex}" if in_session_graph() else ""
