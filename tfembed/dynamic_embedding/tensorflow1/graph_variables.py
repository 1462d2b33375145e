"""The variables of a graph of TensorFlow 1, and its lookups.

A handle stands for each lookup; it keeps no rows.
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


def graph_rows(params: Any, ids: Any, name: str) -> GraphRows | None:
    """Makes what stands for a lookup in a graph that sessions run.

    Returns:
      None in eager mode, in functions, and in the branches and loops of a graph.
    """
    if not in_session_graph():
        return None
    return GraphRows(params, arguments.id_tensor(ids, params), name)


def has_variables(params: Any) -> bool:
    """Whether each lookup in `params` is a trainable variable of the graph."""
    return (
        params.trainable
        and params.value_dtype.is_floating
        and in_session_graph()
    )


def note_lookup_variable(wrapper: Any) -> None:
    """Lists a `TrainableWrapper` among the variables that the graph trains."""
    if wrapper.trainable and has_variables(wrapper.params):
        tf.compat.v1.add_to_collection(
            tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES, wrapper
        )


def keeps_tensors() -> bool:
    """Whether an object may keep a tensor that is made here for later calls.

    A function's tensors, and those of a branch or loop, are of use inside of it
    alone.
    """
    return tf.executing_eagerly() or in_session_graph()


class GraphRows:
    """Takes the place of a wrapper's buffer in a graph, with its attributes.

    The handle is an identity of the table's: gradients of the lookup go to it,
    and through it to the table's own, which has those of all lookups.

    Attributes:
      ids: what is looked up, as a tensor.
      handle: where the lookup's gradients go.
      dtype: the rows'.
      shape: the rows', as far as it is known.
      device: where the handle is.

    Args:
      params: the `Variable`.
      ids: what is looked up.
      name: the lookup's.
    """

    def __init__(self, params: Any, ids: tf.Tensor, name: str) -> None:
        # As get_variable names variables: by variable scope, which may be
        # entered again.
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
        """Raises UnsupportedError: the value is what the lookup reads."""
        del value, args, kwargs
        raise errors.UnsupportedError(
            f"The value of '{self.handle.name}' is what its lookup reads; in a "
            "graph of TensorFlow 1 it cannot be assigned to. Write rows with "
            "the Variable's `upsert`."
        )

    def numpy(self) -> Any:
        """Raises UnsupportedError: a session evaluates tensors."""
        raise errors.UnsupportedError(
            f"'{self.handle.name}' is of a graph of TensorFlow 1; evaluate its "
            "`read_value()` in a session."
        )
