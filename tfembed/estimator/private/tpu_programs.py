"""Private symbols of TPUs in sessions: their programs, topologies and queues.

tests/estimator/tpu/test_private.py tries each of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.core.protobuf.tpu import compilation_result_pb2, topology_pb2
from tensorflow.python.framework import function
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

__all__ = [
    "tensor_tracer",
]

# The public API that would end each entry. The versions: TRIED_ON of
# tfembed/ops/private.py.
ENDED_BY = {
    "compilation_error": "public names of TensorFlow's TPU sessions",
    "device_assignment": "public names of TensorFlow's TPU sessions",
    "embedding_engine": "a public description of a topology's hardware",
    "infeed_dequeue": "public infeed and outfeed ops",
    "infeed_enqueue": "public infeed and outfeed ops",
    "inference_context": "public names of TensorFlow's TPU sessions",
    "master_job": "public names of TensorFlow's TPU sessions",
    "outfeed_dequeue": "public infeed and outfeed ops",
    "outfeed_enqueue": "public infeed and outfeed ops",
    "partitioned_call": "public names of TensorFlow's TPU sessions",
    "query_system": "public names of TensorFlow's TPU sessions",
    "replica_id": "a public op of the replica that runs",
    "rewrite": "public names of TensorFlow's TPU sessions",
    "shard_context": "a public context of cross-replica optimizers",
    "split_compile_and_replicate": "public names of TensorFlow's TPU sessions",
    "topology": "public names of TensorFlow's TPU sessions",
    "while_loop": "public names of TensorFlow's TPU sessions",
}


def replica_id() -> Any:
    """Returns a tensor with the number of the replica that runs."""
    return gen_xla_ops.xla_replica_id()


def shard_context(replicas: int) -> Any:
    """Returns a context that gives CrossShardOptimizer the replicas' number."""
    return tpu_function.tpu_shard_context(replicas)


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
