"""The variables of a graph of TensorFlow 1, for whoever asks for all of them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["GraphKeys", "all_variables", "note_variable", "trainable_variables"]

# No string: a Saver tries to write what collections of such names hold into its
# meta graph.
_COLLECTION = ("tfembed_variables",)


def note_variable(variable: Any) -> None:
    """Has the graph that is being built know a `Variable`; no-op in eager mode."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            tf.compat.v1.add_to_collection(_COLLECTION, variable)


def all_variables() -> list[Any]:
    """The `Variable`s of the current graph."""
    return list(tf.compat.v1.get_collection(_COLLECTION))


def trainable_variables() -> list[Any]:
    """The `Variable`s of the current graph whose lookups carry gradients."""
    return [
        variable
        for variable in all_variables()
        if variable.trainable and variable.value_dtype.is_floating
    ]


class GraphKeys:
    """Collections that programs of TensorFlow 1 may put variables into.

    As in TFRA's last releases nothing is put there by itself:
    `tf.compat.v1.add_to_collection(GraphKeys.DYNAMIC_EMBEDDING_VARIABLES, v)`.
    """

    DYNAMIC_EMBEDDING_VARIABLES = "dynamic_embedding_variables"
    TRAINABLE_DYNAMIC_EMBEDDING_VARIABLES = (
        "trainable_dynamic_embedding_variables"
    )
