"""Variables found again by name."""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.variables.arguments import default_partition_fn
from tfembed.dynamic_embedding.variables.variable import Partitioner, Variable
from tfembed.policies import AdmissionPolicy, EvictionPolicy, Expiry
from tfembed.tables.arguments import table_dtypes

__all__ = ["get_variable"]

# No string, as TensorFlow's own store of variables: a Saver tries to write what
# collections of such names hold into its meta graph.
_COLLECTION = ("tfembed_dynamic_embedding_variables",)

_lock = threading.Lock()
_variables: dict[str, Variable] = {}  # Of eager mode. Guarded by _lock.


def get_variable(
    name: str,
    key_dtype: Any = tf.int64,
    value_dtype: Any = tf.float32,
    dim: int = 1,
    devices: Any = None,
    partitioner: Partitioner = default_partition_fn,
    shared_name: str | None = "get_variable",
    initializer: Any = None,
    trainable: bool = True,
    checkpoint: bool = True,
    init_size: int = 0,
    kv_creator: Any = None,
    restrict_policy: Any = None,
    bp_v2: bool = False,
    short_file_name: bool = False,
    *,
    admission: AdmissionPolicy | None = None,
    eviction: EvictionPolicy | None = None,
    expiry: Expiry | None = None,
    max_size: int | None = None,
    stochastic_rounding: bool = False,
) -> Variable:
    """Makes the variable called `name`, or finds it.

    The name counts with the current `tf.compat.v1.variable_scope`'s before it,
    unless `short_file_name`. A variable made here lives as long as the process;
    in a graph of TensorFlow 1, as long as the graph, which has its own names.

    Args:
      name: the variable's name.
      key_dtype, ..., stochastic_rounding: as for `Variable`. Where the variable is
        found, `dim` and the dtypes must be its own, and the rest is not used.

    Returns:
      The one variable of that name.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) the variable is there and
        the scope was opened with `reuse=False`; or it has another width.
      Others as `Variable`.
    """
    scope = tf.compat.v1.get_variable_scope()
    full_name = (
        f"{scope.name}/{name}" if scope.name and not short_file_name else name
    )
    with _lock:
        variables = _current_store()
        found = variables.get(full_name)
        if found is None:
            found = variables[full_name] = Variable(
                key_dtype,
                value_dtype,
                dim,
                devices,
                partitioner,
                shared_name,
                full_name,
                initializer,
                trainable,
                checkpoint,
                init_size,
                kv_creator,
                restrict_policy,
                bp_v2,
                short_file_name,
                admission=admission,
                eviction=eviction,
                expiry=expiry,
                max_size=max_size,
                stochastic_rounding=stochastic_rounding,
            )
            return found
    # In eager mode, and in its functions, a scope cannot forbid reuse.
    if scope.reuse is False and variables is not _variables:
        raise errors.ArgumentError(
            f"Variable {full_name} already exists, disallowed. Did you mean to "
            "set reuse=True or reuse=tf.AUTO_REUSE in VarScope?"
        )
    dtypes = table_dtypes(key_dtype, value_dtype)
    if dtypes != (found.key_dtype, found.value_dtype):
        raise errors.DtypeError(
            f"Variable {full_name} exists with key_dtype-value_dtype "
            f"{found.key_dtype.name}-{found.value_dtype.name}; got "
            f"{dtypes[0].name}-{dtypes[1].name}. Use its dtypes, or another name."
        )
    if found.dim != dim:
        raise errors.ArgumentError(
            f"Variable {full_name} exists with dim={found.dim}; got dim={dim}. "
            "Use its width, or another name."
        )
    return found


def _current_store() -> dict[str, Variable]:
    """The variables of eager mode, or of the graph that is being built."""
    with tf.init_scope():
        if tf.executing_eagerly():
            return _variables
        stores = tf.compat.v1.get_collection_ref(_COLLECTION)
        if not stores:
            stores.append({})
        return stores[0]
