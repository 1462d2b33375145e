"""The private TensorFlow symbols that `tfembed.estimator` uses.

TensorFlow drives v1 sessions, and TPUs in them, by modules without public
names. This module is the only one that uses them: first come the symbols of
sessions, then those of replicas and TPUs. `test_private.py` of
tests/estimator, tests/estimator/replicas and tests/estimator/tpu try each of
them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.core.framework import attr_value_pb2, graph_pb2
from tensorflow.core.protobuf import (
    rewriter_config_pb2,
    trackable_object_graph_pb2,
)
from tensorflow.core.protobuf.tpu import compilation_result_pb2, topology_pb2
from tensorflow.python.framework import function, op_def_registry
from tensorflow.python.ops import control_flow_ops, summary_ops_v2
from tensorflow.python.ops import variable_scope as variable_scopes
from tensorflow.python.saved_model import model_utils, path_helpers
from tensorflow.python.saved_model.model_utils import (
    export_output,
    export_utils,
    mode_keys,
)
from tensorflow.python.tpu import device_assignment as assignments
from tensorflow.python.tpu import functional as tpu_functional
from tensorflow.python.tpu import (
    tensor_tracer,
    tpu,
    tpu_function,
    tpu_system_metadata,
    training_loop,
)
from tensorflow.python.tpu import topology as topologies
from tensorflow.python.tpu.ops import tpu_ops
from tensorflow.python.training import (
    device_setter,
    evaluation,
    training_util,
)
from tensorflow.python.training.saving import saveable_object_util
from tensorflow.python.util import function_utils

__all__ = [
    "device_setter",
    "evaluation",
    "export_output",
    "export_utils",
    "fn_args",
    "mode_keys",
    "model_utils",
    "path_helpers",
    "rewriter_config_pb2",
    "tensor_tracer",
    "writes_text_graphs",
]

# The public API that would end each entry. The versions: TRIED_ON of
# tfembed/ops/private.py.
ENDED_BY = {
    "XLAControlFlowContext": "public control flow contexts",
    "add_control_inputs": "a public way to change an input in a graph",
    "add_global_step_read": "a public home of TensorFlow 1's session loops",
    "add_listeners": "a public method of CheckpointSaverHook",
    "add_train_op": "a public argument of the v1 SavedModel builder",
    "compilation_error": "public names of TensorFlow's TPU sessions",
    "context_of": "public control flow contexts",
    "contexts_around": "public control flow contexts",
    "control_outputs": "a public list of control edges",
    "device_assignment": "public names of TensorFlow's TPU sessions",
    "embedding_engine": "a public description of a topology's hardware",
    "end_process": "a public exit of os that a thread may take",
    "eval_step": "a public home of TensorFlow 1's session loops",
    "evaluate_once": "a public home of TensorFlow 1's session loops",
    "flush_of_writer": "a public list of a v1 graph's writers",
    "fn_args": "inspect.signature, if old model_fns need no partial",
    "forget_tpu_devices": "a public way to place an op again",
    "frames_around": "public control flow contexts",
    "frames_here": "public control flow contexts",
    "fresh_keras_state": "a public scope of Keras 3 for names and seeds",
    "global_step_read": "a public home of TensorFlow 1's session loops",
    "infeed_dequeue": "public infeed and outfeed ops",
    "infeed_enqueue": "public infeed and outfeed ops",
    "inference_context": "public names of TensorFlow's TPU sessions",
    "initialize_too": "a public way to add to a Scaffold's init_op",
    "is_ref": "the end of reference variables",
    "iterator_saveable": "a public saveable of an iterator's resource",
    "layers_of": "a public walk through the nested layers of a Keras model",
    "last_step": "a public attribute of StopAtStepHook",
    "mark_values": "public control flow contexts",
    "master_job": "public names of TensorFlow's TPU sessions",
    "object_graph": "a public description of a checkpoint's objects",
    "op_def": "a public registry of ops",
    "outfeed_dequeue": "public infeed and outfeed ops",
    "outfeed_enqueue": "public infeed and outfeed ops",
    "outside_of_contexts": "public control flow contexts",
    "partitioned_call": "public names of TensorFlow's TPU sessions",
    "query_system": "public names of TensorFlow's TPU sessions",
    "replace_input": "a public way to change an input in a graph",
    "replica_id": "a public op of the replica that runs",
    "resource_variables": "a public scope argument of get_variable",
    "rewrite": "public names of TensorFlow's TPU sessions",
    "saveables_by_name": "a public list of what a v1 Saver saves, by name",
    "set_attributes": "a public way to set attributes in a graph",
    "shard_context": "a public context of cross-replica optimizers",
    "split_compile_and_replicate": "public names of TensorFlow's TPU sessions",
    "stop_after_evals": "a public home of TensorFlow 1's session loops",
    "summary_collection": "a public list of a v1 graph's tf.summary ops",
    "summary_writer_initializers": "a public list of a v1 graph's writers",
    "topology": "public names of TensorFlow's TPU sessions",
    "use_instead": "a public way to change an input in a graph",
    "while_loop": "public names of TensorFlow's TPU sessions",
    "writes_text_graphs": "a TensorFlow that writes text with protobuf 7",
}


def fn_args(function: Callable[..., Any]) -> tuple[str, ...]:
    """Returns a function's argument names, without those that are bound."""
    return tuple(function_utils.fn_args(function))


def end_process(status: int) -> NoReturn:
    """Ends the process from any thread, without Python's cleanup."""
    os._exit(status)


def writes_text_graphs() -> bool:
    """Whether TensorFlow can write graph.pbtxt; some fail with protobuf 7."""
    try:
        text_format.MessageToString(graph_pb2.GraphDef(), float_format="")
    except TypeError:
        return False
    return True


def saveables_by_name() -> dict[str, Any]:
    """Returns a Saver's saveables; parts of a variable are under its name."""
    keys = tf.compat.v1.GraphKeys
    found: dict[str, Any] = saveable_object_util.op_list_to_dict(
        tf.compat.v1.get_collection(keys.GLOBAL_VARIABLES)
        + tf.compat.v1.get_collection(keys.SAVEABLE_OBJECTS)
    )
    return found


def global_step_read(graph: Any) -> Any:
    """Returns the read of the global step that a session's hooks share."""
    return training_util._get_or_create_global_step_read(graph)


def add_global_step_read(graph: Any, read: Any) -> None:
    """Sets the read of the global step that a session's hooks share."""
    graph.add_to_collection(training_util.GLOBAL_STEP_READ_KEY, read)


def summary_writer_initializers(graph: Any) -> list[Any]:
    """Returns the ops that open the graph's tf.summary writers."""
    name = summary_ops_v2._SUMMARY_WRITER_INIT_COLLECTION_NAME
    return list(graph.get_collection(name))


def flush_of_writer(writer: Any) -> Any:
    """Returns the op that flushes a tf.summary writer, given its resource."""
    return summary_ops_v2.legacy_raw_flush(writer=writer)


def summary_collection(graph: Any) -> list[Any]:
    """Returns the graph's own list of tf.summary ops, which may be changed."""
    name = tf.compat.v1.GraphKeys._SUMMARY_COLLECTION
    ops: list[Any] = graph.get_collection_ref(name)
    return ops


def eval_step() -> Any:
    """Returns the variable that counts an evaluation's steps."""
    return evaluation._get_or_create_eval_step()


def stop_after_evals(steps: int) -> Any:
    """Returns a hook that stops an evaluation after `steps` steps."""
    return evaluation._StopAfterNEvalsHook(num_evals=steps)


def evaluate_once(**options: Any) -> dict[str, Any]:
    """Restores a checkpoint, runs the steps, and returns the results."""
    results: dict[str, Any] = evaluation._evaluate_once(**options)
    return results


def last_step(hook: Any) -> int | None:
    """Returns the global step at which a hook stops; None if unknown."""
    if isinstance(hook, tf.compat.v1.train.StopAtStepHook):
        step: int | None = hook._last_step
        return step
    return getattr(hook, "last_step", None)


def add_listeners(saver_hook: Any, listeners: Sequence[Any]) -> None:
    """Adds listeners to a CheckpointSaverHook, each only once."""
    for listener in listeners:
        if listener not in saver_hook._listeners:
            saver_hook._listeners.append(listener)


def initialize_too(scaffold: Any, ops: Sequence[Any]) -> None:
    """Adds ops to the init_op of a finalized Scaffold."""
    if not isinstance(scaffold.init_op, list):
        scaffold._init_op = [scaffold.init_op, *ops]


def iterator_saveable(handle: Any, policy: str) -> Any:
    """Wraps the position of a tf.data iterator for a Saver.

    Args:
      handle: the iterator's resource.
      policy: what to do about state outside the iterator: "warn", "ignore" or
        "fail".
    """
    return tf.data.experimental.make_saveable_from_iterator(
        types.SimpleNamespace(_iterator_resource=handle), policy
    )


def add_train_op(builder: Any, train_op: Any) -> None:
    """Adds the op of a training step to a SavedModel's builder."""
    builder._add_train_op(train_op)


def layers_of(model: Any) -> list[Any]:
    """Returns a Keras model's layers, those inside of others too."""
    return list(model._flatten_layers())


def object_graph(serialized: bytes) -> Any:
    """Parses the description of objects in a checkpoint."""
    return trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        serialized
    )


# Keras 3's counters of names, and the variable that ops without a seed share.
_KERAS_STATE = ("object_name_uids", "global_seed_generator")


@contextlib.contextmanager
def fresh_keras_state() -> Iterator[None]:
    """Resets Keras 3's counters of names within the block.

    The block may import Keras.
    """
    before = [_keras_attribute(name) for name in _KERAS_STATE]
    for name in _KERAS_STATE:
        _set_keras_attribute(name, None)
    try:
        yield
    finally:
        for name, value in zip(_KERAS_STATE, before):
            _set_keras_attribute(name, value)


def _keras_state() -> Any:
    return sys.modules.get("keras.src.backend.common.global_state")


def _keras_attribute(name: str) -> Any:
    state = _keras_state()
    return None if state is None else state.get_global_attribute(name)


def _set_keras_attribute(name: str, value: Any) -> None:
    state = _keras_state()
    if state is not None:
        state.set_global_attribute(name, value)


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


def replica_id() -> Any:
    """Returns a tensor with the number of the replica that runs."""
    return gen_xla_ops.xla_replica_id()


def shard_context(replicas: int) -> Any:
    """Returns a context that gives CrossShardOptimizer the replicas' number."""
    return tpu_function.tpu_shard_context(replicas)


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


# Symbols for sessions of real TPUs.


def query_system(master: str, cluster_def: Any, *, with_topology: bool) -> Any:
    """Returns the cores, hosts and devices that TensorFlow finds."""
    return tpu_system_metadata._query_tpu_system_metadata(
        master, cluster_def=cluster_def, query_topology=with_topology
    )


def master_job(master: str, cluster_def: Any) -> str | None:
    """Returns the job name of the TPU's hosts; None for this process."""
    job: str | None = tpu_system_metadata.master_job(master, cluster_def)
    return job


def topology(mesh_shape: Any, device_coordinates: Any) -> Any:
    """Returns the Topology of a mesh of cores."""
    return topologies.Topology(
        mesh_shape=mesh_shape, device_coordinates=device_coordinates
    )


def embedding_engine(of: Any) -> int:
    """Returns the version of a mesh's embedding engine; 0 without one."""
    if of is None:
        return 0
    proto = topology_pb2.TopologyProto.FromString(of.serialized())
    return int(proto.tpu_hardware_feature.embedding_feature)


def device_assignment(
    of: Any, computation_shape: Any, num_replicas: int
) -> Any:
    """Returns the DeviceAssignment of a mesh's cores to replicas."""
    return assignments.device_assignment(
        of, computation_shape=computation_shape, num_replicas=num_replicas
    )


@contextlib.contextmanager
def inference_context() -> Iterator[None]:
    """Marks ops created in the block as a graph for TPU inference."""
    context = tpu._TPUInferenceContext("tpu_inference", check_ops=False)
    context.Enter()
    try:
        yield
    finally:
        context.Exit()


def partitioned_call(body: Callable[[], list[Any]]) -> Any:
    """Runs a function on the next free core; returns its output tensors.

    The function's variables are read on that core.
    """

    @function.Defun(capture_resource_var_by_value=False)
    def on_tpu() -> list[Any]:
        return body()

    return tpu_functional.TPUPartitionedCall(
        args=on_tpu.captured_inputs,
        device_ordinal=tpu_ops.tpu_ordinal_selector(),
        Tout=[o.type for o in on_tpu.definition.signature.output_arg],
        f=on_tpu,
    )


def rewrite(computation: Callable[..., Any], inputs: Any = None) -> Any:
    """Compiles a computation for one core; prunes the graph's unused ops."""
    outputs = tf.compat.v1.tpu.rewrite(computation, inputs)
    tpu.prune_unconnected_ops_from_xla(tf.compat.v1.get_default_graph())
    return outputs


def split_compile_and_replicate(
    computation: Callable[..., Any], inputs: Any, assignment: Any
) -> tuple[Any, Any]:
    """Compiles a TPU program for replicas, each with its own inputs.

    Returns the op that compiles the program, and the outputs per replica.
    """
    compiled, outputs = tpu.split_compile_and_replicate(
        computation, inputs, device_assignment=assignment
    )
    return compiled, outputs


def compilation_error(serialized: bytes) -> str:
    """Returns the compiler's error text; empty if the program compiled."""
    result = compilation_result_pb2.CompilationResultProto.FromString(
        serialized
    )
    return str(result.status_error_message)


def while_loop(
    condition: Callable[..., Any], body: Callable[..., Any], inputs: Any
) -> Any:
    """Adds a loop to a TPU's program."""
    return training_loop.while_loop(condition, body, inputs)


def infeed_enqueue(tensors: Sequence[Any], core: int) -> Any:
    """Sends tensors to a core of the op's host."""
    return tpu_ops.infeed_enqueue_tuple(
        tensors, [tensor.shape for tensor in tensors], device_ordinal=core
    )


def infeed_dequeue(dtypes: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
    """Receives, in a program, the tensors that the host sent."""
    return list(tpu_ops.infeed_dequeue_tuple(dtypes, shapes))


def outfeed_enqueue(tensors: Sequence[Any]) -> Any:
    """Sends tensors from a program to its host."""
    return tpu_ops.outfeed_enqueue_tuple(tensors)


def outfeed_dequeue(
    dtypes: Sequence[Any], shapes: Sequence[Any], core: int
) -> list[Any]:
    """Receives the tensors that a program sent from a core of the op's host."""
    return list(
        tpu_ops.outfeed_dequeue_tuple(dtypes, shapes, device_ordinal=core)
    )
