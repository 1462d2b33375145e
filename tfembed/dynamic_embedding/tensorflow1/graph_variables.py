"""The variables of a graph of TensorFlow 1, and its lookups.

Each lookup has a handle, but no buffer of rows.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.variables import arguments
from tfembed.ops.private import in_session_graph

__all__ = [
    "GraphKeys",
    "GraphRows",
    "all_variables",
    "graph_rows",
    "has_variables",
    "keeps_tensors",
    "note_lookup_variable",
    "note_variable",
    "trainable_variables",
]

# Not a string: a Saver tries to write collections with string keys into its
# meta graph.
_COLLECTION = ("tfembed_variables",)


def note_variable(variable: Any) -> None:
    """Adds a `Variable` to the current graph's list; no-op in eager mode."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            tf.compat.v1.add_to_collection(_COLLECTION, variable)


def all_variables() -> list[Any]:
    """Returns the `Variable`s of the current graph."""
    return list(tf.compat.v1.get_collection(_COLLECTION))


def trainable_variables() -> list[Any]:
    """Returns the trainable `Variable`s of the current graph."""
    return [
        variable
        for variable in all_variables()
        if variable.trainable and variable.value_dtype.is_floating
    ]


class GraphKeys:
    """Collections that programs of TensorFlow 1 may put variables into.

    As in TFRA's last releases, variables are not added automatically; call
    `tf.compat.v1.add_to_collection(GraphKeys.DYNAMIC_EMBEDDING_VARIABLES, v)`.
    """

    DYNAMIC_EMBEDDING_VARIABLES = "dynamic_embedding_variables"
    TRAINABLE_DYNAMIC_EMBEDDING_VARIABLES = (
        "trainable_dynamic_embedding_variables"
    )


def graph_rows(params: Any, ids: Any, name: str) -> GraphRows | None:
    """Makes the `GraphRows` of a lookup in a graph that sessions run.

    Returns:
      The rows; None in eager mode, in functions, and in the branches and loops
      of a graph.
    """
    if not in_session_graph():
        return None
    return GraphRows(params, arguments.id_tensor(ids, params), name)


def has_variables(params: Any) -> bool:
    """Says whether a lookup in `params` is a variable that the graph trains."""
    return (
        params.trainable
        and params.value_dtype.is_floating
        and in_session_graph()
    )


def note_lookup_variable(wrapper: Any) -> None:
    """Adds a `TrainableWrapper` to the graph's trainable variables."""
    if wrapper.trainable and has_variables(wrapper.params):
        tf.compat.v1.add_to_collection(
            tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES, wrapper
        )


def keeps_tensors() -> bool:
    """Says whether a tensor that is made here may be kept for later calls.

    Tensors of a function, branch or loop can only be used inside of it.
    """
    return tf.executing_eagerly() or in_session_graph()


class GraphRows:
    """Replaces a wrapper's buffer in a graph, with the same attributes.

    The handle is a `tf.identity` of the table's handle: gradients of the lookup
    go to it, and through it to the table's handle, which gets those of all
    lookups.

    Attributes:
      ids: the looked-up ids, a tensor.
      handle: the resource handle that gets the lookup's gradients.
      dtype: the rows' dtype.
      shape: the rows' static shape, as far as it is known.
      device: the handle's device.

    Args:
      params: the `Variable`.
      ids: the ids to look up.
      name: the lookup's name.
    """

    def __init__(self, params: Any, ids: tf.Tensor, name: str) -> None:
        # Named as by get_variable: by variable scope, which may be re-entered.
        scope = tf.compat.v1.get_variable_scope().name
        name = name.strip("/")
        with (
            tf.name_scope(f"{scope}/{name}/")
            if scope
            else contextlib.nullcontext()
        ):
            last = name.rsplit("/")[-1]
            self.handle = tf.identity(params.handle, name=last)
        self.ids = ids
        self.dtype = params.value_dtype
        self.shape = ids.shape.concatenate([params.dim])
        self.device = self.handle.device

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Raises UnsupportedError: the value is the result of the lookup."""
        del value, args, kwargs
        raise errors.UnsupportedError(
            f"The value of '{self.handle.name}' is what its lookup reads; in a "
            "graph of TensorFlow 1 it cannot be assigned to. Write rows with "
            "the Variable's `upsert`."
        )

    def numpy(self) -> Any:
        """Raises UnsupportedError: only a session evaluates tensors."""
        raise errors.UnsupportedError(
            f"'{self.handle.name}' is of a graph of TensorFlow 1; evaluate its "
            "`read_value()` in a session."
        )
