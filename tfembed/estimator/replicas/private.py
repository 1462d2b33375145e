"""The private TensorFlow symbols that simulated replicas use.

Each is wrapped in a function here and tried by
tests/estimator/replicas/test_private.py on every supported version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import control_flow_ops
from tensorflow.python.ops import variable_scope as variable_scopes
from tensorflow.python.tpu import tpu_function

# The public means that would end each entry. The versions: TRIED_ON of
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
    "replica_id": "a public op of the replica that runs",
    "resource_variables": "a public scope argument of get_variable",
    "set_attributes": "a public way to set attributes in a graph",
    "shard_context": "a public context of cross-replica optimizers",
    "use_instead": "a public way to change an input in a graph",
}

# The base of contexts that ops of a TPU's program are created in.
XLAControlFlowContext: Any = control_flow_ops.XLAControlFlowContext


def is_ref(tensor: tf.Tensor) -> bool:
    """Whether a tensor is a reference to a variable's memory."""
    return bool(tensor.dtype._is_ref_dtype)


def context_of(op: tf.Operation) -> Any:
    """The control flow context that an op was created in, or None."""
    return op._get_control_flow_context()


def frames_around(op: tf.Operation) -> list[Any]:
    """The loops and branches that an op is created in, the innermost first.

    A loop or branch is a control flow context of version 1.
    """
    return [c for c in contexts_around(op) if not c.IsXLAContext()]


def frames_here() -> list[Any]:
    """The loops and branches in which an op would be created now."""
    context = tf.compat.v1.get_default_graph()._get_control_flow_context()
    return [c for c in _with_outer(context) if not c.IsXLAContext()]


def contexts_around(op: tf.Operation) -> list[Any]:
    """The control flow contexts that an op is in, the innermost first."""
    return _with_outer(op._get_control_flow_context())


def _with_outer(context: Any) -> list[Any]:
    contexts = []
    while context is not None:
        contexts.append(context)
        context = context.outer_context
    return contexts


def mark_values(context: Any, op: tf.Operation) -> None:
    """Tells a context and the contexts around it that op's outputs are known.

    The last of those contexts hears of the op, too.
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
    """Creates ops at the graph's top: no control flow, edges, scopes, devices."""
    context = graph._get_control_flow_context()
    graph._set_control_flow_context(None)
    try:
        with (
            graph.as_default(),
            graph.control_dependencies(None),
            tf.name_scope(""),
            tf.device(None),
        ):
            # control_dependencies(None) clears the context, and sets it again.
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
    """Makes an op run after others."""
    op._add_control_inputs(list(inputs))


def forget_tpu_devices(ops: Sequence[tf.Operation]) -> None:
    """Lets TensorFlow place ops that were asked for on a TPU's core."""
    for op in ops:
        if "TPU" in op.device:
            op._set_device("")


def control_outputs(op: tf.Operation) -> Sequence[tf.Operation]:
    """The ops that run after an op because they were told to."""
    return op._control_outputs


def replace_input(op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Gives an op, which no session has run yet, another input."""
    op._update_input(index, tensor)


def use_instead(old: tf.Operation, new: tf.Operation) -> None:
    """Makes whatever needs an op need another op with the same outputs."""
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
    """The OpDef of a type of ops; None for a function's name."""
    return op_def_registry.get(op_type)


def replica_id() -> Any:
    """The number of the replica that a step's op is run for."""
    return gen_xla_ops.xla_replica_id()


def shard_context(replicas: int) -> Any:
    """Inside, CrossShardOptimizer and collectives know how many replicas run."""
    return tpu_function.tpu_shard_context(replicas)


@contextlib.contextmanager
def resource_variables() -> Iterator[None]:
    """Inside, tf.compat.v1.get_variable makes resource variables, whole ones.

    A partitioner is refused, as in a TPU's program.
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
