"""`get_variable`: variables that are found by name."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.tables.arguments import table_dtypes

__all__ = ["get_variable"]

# Not a string, as in TensorFlow's own store of variables: a Saver tries to
# write collections with string keys into its meta graph.
_COLLECTION = ("tfembed_dynamic_embedding_variables",)

_lock = threading.Lock()
_variables: dict[str, Variable] = {}  # Of eager mode. Guarded by _lock.


def _signature() -> inspect.Signature:
    """Returns `Variable`'s parameters with the name first, as TFRA's."""
    parameters = dict(inspect.signature(Variable).parameters)
    name = parameters.pop("name").replace(default=inspect.Parameter.empty)
    shared = parameters["shared_name"].replace(default="get_variable")
    parameters["shared_name"] = shared
    return inspect.Signature(
        [name, *parameters.values()], return_annotation=Variable
    )


_SIGNATURE = _signature()


def get_variable(name: str, *args: Any, **options: Any) -> Variable:
    """Makes the variable called `name`, or finds it.

    The current `tf.compat.v1.variable_scope` is a prefix of the name, unless
    `short_file_name` is set. A variable made here exists until the process
    ends; in a graph of TensorFlow 1, as long as the graph, which has its own
    names.

    Args:
      name: the variable's name.
      *args, **options: the other arguments of `Variable`, in the same order. If
        the variable exists, `dim` and the dtypes must be its own, and the other
        arguments are not used.

    Returns:
      The one variable of that name.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) the variable exists and
        has another width; or, in a graph of TensorFlow 1, it exists and the
        scope was opened with `reuse=False`.
      tfembed.errors.DtypeError: (also TypeError) it has other dtypes.
      Others as `Variable`.
    """
    try:
        given = _SIGNATURE.bind(name, *args, **options)
    except TypeError as error:
        raise TypeError(f"get_variable() {error}") from None
    given.apply_defaults()
    asked = given.arguments
    scope = tf.compat.v1.get_variable_scope()
    is_scoped = scope.name and not asked["short_file_name"]
    full_name = f"{scope.name}/{name}" if is_scoped else name
    with _lock:
        variables = _current_store()
        found = variables.get(full_name)
        if found is None:
            asked["name"] = full_name
            found = variables[full_name] = Variable(**asked)
            return found
    # In eager mode, and in its functions, a scope cannot forbid reuse.
    if scope.reuse is False and variables is not _variables:
        raise errors.ArgumentError(
            f"Variable {full_name} already exists, disallowed. Did you mean to "
            "set reuse=True or reuse=tf.AUTO_REUSE in VarScope?"
        )
    dtypes = table_dtypes(asked["key_dtype"], asked["value_dtype"])
    if dtypes != (found.key_dtype, found.value_dtype):
        raise errors.DtypeError(
            f"Variable {full_name} exists with key_dtype-value_dtype "
            f"{found.key_dtype.name}-{found.value_dtype.name}; got "
            f"{dtypes[0].name}-{dtypes[1].name}. Use its dtypes, or another name."
        )
    if found.dim != asked["dim"]:
        raise errors.ArgumentError(
            f"Variable {full_name} exists with dim={found.dim}; got "
            f"dim={asked['dim']}. Use its width, or another name."
        )
    return found


get_variable.__signature__ = _SIGNATURE  # type: ignore[attr-defined]  # For help().


def _current_store() -> dict[str, Variable]:
    """Returns the variables of eager mode, or of the current graph."""
    with tf.init_scope():
        if tf.executing_eagerly():
            return _variables
        stores = tf.compat.v1.get_collection_ref(_COLLECTION)
        if not stores:
            stores.append({})
        return stores[0]
