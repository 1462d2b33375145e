"""Private symbols of graphs that are changed: contexts, inputs, attributes.

tests/estimator/replicas/test_private.py tries each of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import control_flow_ops
from tensorflow.python.ops import variable_scope as variable_scopes

# The public API that would end each entry. The versions: TRIED_ON of
# tfembed/ops/private.py.
ENDED_BY = {
    "XLAControlFlowContext": "public control flow contexts",
    "add_control_inputs": "a public way to change an input in a graph",
    "context_of": "public control flow contexts",
    "contexts_around": "public control flow contexts",
    "control_outputs": "a public list of control edges",
    "forget_tpu_devices": "a public way to place an op again",
    "frames_around": "public control flow contexts",
    "frames_here": "public control flow contexts",
    "is_ref": "the end of reference variables",
    "mark_values": "public control flow contexts",
    "op_def": "a public registry of ops",
    "outside_of_contexts": "public control flow contexts",
    "replace_input": "a public way to change an input in a graph",
    "resource_variables": "a public scope argument of get_variable",
    "set_attributes": "a public way to set attributes in a graph",
    "use_instead": "a public way to change an input in a graph",
}


# Symbols for the simulated replicas of a step.

# The base class of the contexts in which a TPU program's ops are created.
XLAControlFlowContext: Any = control_flow_ops.XLAControlFlowContext


def is_ref(tensor: tf.Tensor) -> bool:
    """Whether a tensor is a reference to a variable's memory."""
    return bool(tensor.dtype._is_ref_dtype)


def context_of(op: tf.Operation) -> Any:
    """Returns the control flow context in which an op was created, or None."""
    return op._get_control_flow_context()


def frames_around(op: tf.Operation) -> list[Any]:
    """Returns the loops and branches around an op, the innermost first.

    Each is a control flow v1 context.
    """
    return [c for c in contexts_around(op) if not c.IsXLAContext()]


def frames_here() -> list[Any]:
    """Returns the loops and branches in which a new op would be created."""
    context = tf.compat.v1.get_default_graph()._get_control_flow_context()
    return [c for c in _with_outer(context) if not c.IsXLAContext()]


def contexts_around(op: tf.Operation) -> list[Any]:
    """Returns the control flow contexts of an op, the innermost first."""
    return _with_outer(op._get_control_flow_context())


def _with_outer(context: Any) -> list[Any]:
    contexts = []
    while context is not None:
        contexts.append(context)
        context = context.outer_context
    return contexts


def mark_values(context: Any, op: tf.Operation) -> None:
    """Marks an op's outputs as values of a context and of those around it.

    The next outer context also gets the op, as an inner op.
    """
    names = [tensor.name for tensor in op.outputs]
    around = context
    while around is not None:
        around._values.update(names)
        around = around._outer_context
    if context._outer_context is not None:
        context._outer_context.AddInnerOp(op)


@contextlib.contextmanager
def outside_of_contexts(graph: tf.Graph) -> Iterator[None]:
    """Creates ops without contexts, control inputs, name scopes and devices."""
    context = graph._get_control_flow_context()
    graph._set_control_flow_context(None)
    try:
        with (
            graph.as_default(),
            graph.control_dependencies(None),
            tf.name_scope(""),
            tf.device(None),
        ):
            # control_dependencies(None) leaves the context, and enters it
            # again.
            yield
    finally:
        graph._set_control_flow_context(context)


def set_attributes(op: tf.Operation, attributes: dict[str, Any]) -> None:
    """Sets attributes of an op: integers, bytes, or an AttrValue."""
    for name, value in attributes.items():
        if isinstance(value, int):
            value = attr_value_pb2.AttrValue(i=value)
        elif isinstance(value, bytes):
            value = attr_value_pb2.AttrValue(s=value)
        op._set_attr(name, value)


def add_control_inputs(
    op: tf.Operation, inputs: Sequence[tf.Operation]
) -> None:
    """Adds control inputs to an op."""
    op._add_control_inputs(list(inputs))


def forget_tpu_devices(ops: Sequence[tf.Operation]) -> None:
    """Clears the devices of ops that are assigned to a TPU core."""
    for op in ops:
        if "TPU" in op.device:
            op._set_device("")


def control_outputs(op: tf.Operation) -> Sequence[tf.Operation]:
    """Returns the ops that have `op` as a control input."""
    return op._control_outputs


def replace_input(op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Replaces an input of an op that no session has run yet."""
    op._update_input(index, tensor)


def use_instead(old: tf.Operation, new: tf.Operation) -> None:
    """Makes all consumers of an op use another op with the same outputs."""
    for given, tensor in zip(old.outputs, new.outputs):
        for consumer in given.consumers():
            for index, used in enumerate(consumer.inputs):
                if used.op is old and used.value_index == given.value_index:
                    consumer._update_input(index, tensor)
    for op in list(old._control_outputs):
        others = [before for before in op.control_inputs if before is not old]
        op._remove_all_control_inputs()
        op._add_control_inputs([*others, new])


def op_def(op_type: str) -> Any:
    """Returns the OpDef of an op type; None for the name of a function."""
    return op_def_registry.get(op_type)


@contextlib.contextmanager
def resource_variables() -> Iterator[None]:
    """Makes tf.compat.v1.get_variable create unpartitioned resource variables.

    A partitioner raises an error, as in a TPU's program.
    """
    scope: Any = variable_scopes.get_variable_scope()
    use_resource, outer_getter = scope.use_resource, scope.custom_getter

    def get(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        partitioner = kwargs.get("partitioner")
        if partitioner is not None:
            raise ValueError(
                "Partitioned variables are not supported on TPU. Got"
                f" `partitioner` that is {partitioner} for variable {name}."
                " Leave the partitioner out where params['use_tpu'] is True."
            )
        if outer_getter is None:
            return getter(name, *args, **kwargs)
        return outer_getter(getter, name, *args, **kwargs)

    scope.set_use_resource(True)
    scope.set_custom_getter(get)
    try:
        yield
    finally:
        scope.set_use_resource(use_resource)
        scope.set_custom_getter(outer_getter)
