"""The private TensorFlow symbols that `tfembed.estimator.tpu` uses.

tests/estimator/tpu/test_tpu_private.py tries each of them. Tests of other people
replace functions in these modules, so modules are named here where they do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.tpu import compilation_result_pb2, topology_pb2
from tensorflow.python.framework import function
from tensorflow.python.tpu import device_assignment as assignments
from tensorflow.python.tpu import functional as tpu_functional
from tensorflow.python.tpu import topology as topologies
from tensorflow.python.tpu import tpu, tpu_system_metadata, training_loop
from tensorflow.python.tpu.ops import tpu_ops

# The public means that would end each entry. The versions: TRIED_ON of
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
    "rewrite": "public names of TensorFlow's TPU sessions",
    "split_compile_and_replicate": "public names of TensorFlow's TPU sessions",
    "topology": "public names of TensorFlow's TPU sessions",
    "while_loop": "public names of TensorFlow's TPU sessions",
}


def query_system(master: str, cluster_def: Any, *, with_topology: bool) -> Any:
    """The cores, hosts and devices that TensorFlow finds behind a master."""
    return tpu_system_metadata._query_tpu_system_metadata(
        master, cluster_def=cluster_def, query_topology=with_topology
    )


def master_job(master: str, cluster_def: Any) -> str | None:
    """The job of the TPU's hosts; None in this process."""
    job: str | None = tpu_system_metadata.master_job(master, cluster_def)
    return job


def topology(mesh_shape: Any, device_coordinates: Any) -> Any:
    """A mesh of cores."""
    return topologies.Topology(
        mesh_shape=mesh_shape, device_coordinates=device_coordinates
    )


def embedding_engine(of: Any) -> int:
    """The version of the embedding engine of a mesh's cores; 0: they have none."""
    if of is None:
        return 0
    proto = topology_pb2.TopologyProto.FromString(of.serialized())
    return int(proto.tpu_hardware_feature.embedding_feature)


def device_assignment(
    of: Any, computation_shape: Any, num_replicas: int
) -> Any:
    """Which cores of a mesh each replica has."""
    return assignments.device_assignment(
        of, computation_shape=computation_shape, num_replicas=num_replicas
    )


@contextlib.contextmanager
def inference_context() -> Iterator[None]:
    """Inside, the graph is one that a TPU serves."""
    context = tpu._TPUInferenceContext("tpu_inference", check_ops=False)
    context.Enter()
    try:
        yield
    finally:
        context.Exit()


def partitioned_call(body: Callable[[], list[Any]]) -> Any:
    """Tensors that a function gives, which runs on the next free core.

    Variables that the body uses are read there.
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
    """A computation for one core, without the ops that nothing needs."""
    outputs = tf.compat.v1.tpu.rewrite(computation, inputs)
    tpu.prune_unconnected_ops_from_xla(tf.compat.v1.get_default_graph())
    return outputs


def split_compile_and_replicate(
    computation: Callable[..., Any], inputs: Any, assignment: Any
) -> tuple[Any, Any]:
    """A TPU's program for replicas with inputs of their own.

    Returns the op that compiles the program, and per replica its outputs.
    """
    compiled, outputs = tpu.split_compile_and_replicate(
        computation, inputs, device_assignment=assignment
    )
    return compiled, outputs


def compilation_error(serialized: bytes) -> str:
    """The compiler's error text; empty if the program compiled."""
    result = compilation_result_pb2.CompilationResultProto.FromString(
        serialized
    )
    return str(result.status_error_message)


def while_loop(
    condition: Callable[..., Any], body: Callable[..., Any], inputs: Any
) -> Any:
    """A loop in a TPU's program."""
    return training_loop.while_loop(condition, body, inputs)


def infeed_enqueue(tensors: Sequence[Any], core: int) -> Any:
    """Sends tensors to a core of the op's host."""
    return tpu_ops.infeed_enqueue_tuple(
        tensors, [tensor.shape for tensor in tensors], device_ordinal=core
    )


def infeed_dequeue(dtypes: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
    """Takes, in a program, what the host sent."""
    return list(tpu_ops.infeed_dequeue_tuple(dtypes, shapes))


def outfeed_enqueue(tensors: Sequence[Any]) -> Any:
    """Sends tensors from a program to its host."""
    return tpu_ops.outfeed_enqueue_tuple(tensors)


def outfeed_dequeue(
    dtypes: Sequence[Any], shapes: Sequence[Any], core: int
) -> list[Any]:
    """Takes what the program of a core of the op's host sent."""
    return list(
        tpu_ops.outfeed_dequeue_tuple(dtypes, shapes, device_ordinal=core)
    )
