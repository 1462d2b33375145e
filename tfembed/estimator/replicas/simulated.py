"""Replicas of a step of TensorFlow 1 in one process, without a TPU.

The step's Python runs once. What it adds to the graph is replica 0; the others
are copies of those ops in the same graph. All replicas run in one session call,
on whatever threads the session has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator.replicas import private
from tfembed.estimator.replicas.exchanges import (
    Copies,
    exchange,
    of_replica,
)
from tfembed.estimator.replicas.function_copies import FunctionCopies
from tfembed.estimator.replicas.step_graph import Recorder, StepGraph
from tfembed.estimator.replicas.variable_order import (
    needed_ops,
    order_reads_before_writes,
)


@dataclasses.dataclass(frozen=True)
class Replicas:
    """A step and its copies.

    Attributes:
      outputs: for each replica what `step` returned, with the replica's own
        tensors and operations.
      start_of_loop: an operation to run before the first of the steps between
        which nothing outside of the replicas reads or assigns variables. The
        replicas get the values of the variables that replica 0 has.
      has_collectives: whether replicas sum or exchange tensors.
      ops: all ops that the step made, which are replica 0's.
      end_of_loop: an operation that the last step of a loop runs behind all
        else: variables have their values then. None: nothing waits.
    """

    outputs: list[Any]
    start_of_loop: tf.Operation
    has_collectives: bool
    ops: frozenset[tf.Operation]
    end_of_loop: tf.Operation | None = None


def replicate(
    step: Callable[..., Any], inputs: Sequence[Sequence[tf.Tensor]]
) -> Replicas:
    """Adds a step to the graph, once for each replica.

    `step` is called once, with replica 0's inputs, and inside of it:

    - CrossReplicaSum, AllToAll and CollectivePermute (so also
      tf.compat.v1.tpu.CrossShardOptimizer) work between the replicas; sums are
      in the order of replicas, and so the same each time;
    - a variable is replica 0's. Where the replicas assign it different values,
      as moving averages of their own batches, each other replica has a copy
      from `start_of_loop` on, which no Saver and no collection knows: what
      replica 0 has is kept;
    - what is the same in all replicas, such as an optimizer's step behind the
      sum of gradients, is done once;
    - ops with seeds draw other numbers in each replica. Stateless random ops
      do not: their seed is an input;
    - a read of a variable comes before writes that it does not depend on.

    Args:
      step: a function of as many tensors as a replica has inputs. Returns a
        structure of tensors and operations; what else is in the structure all
        replicas share.
      inputs: for each replica its tensors, of the same types and of compatible
        shapes.

    Returns:
      The replicas.

    Raises:
      ArgumentError: no replica, or replicas with different inputs.
      UnsupportedError: an op that cannot be copied; its name is in the text.
    """
    _check_inputs(inputs)
    graph = tf.compat.v1.get_default_graph()
    recorder = Recorder()
    first = len(graph.get_operations())
    with private.shard_context(len(inputs)):
        recorder.Enter()
        try:
            with private.resource_variables():
                given = [
                    tf.identity(tensor, name="replica_input")
                    for tensor in inputs[0]
                ]
                structure = step(*given)
                returned = [
                    tf.convert_to_tensor(leaf)
                    if isinstance(leaf, tf.Variable)
                    else leaf
                    for leaf in tf.nest.flatten(
                        structure, expand_composites=True
                    )
                ]
        finally:
            recorder.Exit()
    private.forget_tpu_devices(graph.get_operations()[first:])
    places = [
        i
        for i, leaf in enumerate(returned)
        if isinstance(leaf, (tf.Tensor, tf.Operation))
    ]
    ends = [returned[i] for i in places]
    order_reads_before_writes(ends)
    takers = [tensor.op for tensor in given]
    recorded = StepGraph(recorder, needed_ops(ends), takers, len(inputs))
    copies, start, waits = _copy(graph, recorded, takers, inputs)
    outputs = []
    for ops in copies:
        leaves = list(returned)
        for i in places:
            leaves[i] = of_replica(returned[i], ops)
        outputs.append(leaves)
    if waits:
        _wait_for_all(graph, outputs, places)
    return Replicas(
        outputs=[
            tf.nest.pack_sequence_as(structure, leaves, expand_composites=True)
            for leaves in outputs
        ],
        start_of_loop=start,
        has_collectives=waits or bool(recorded.collectives()),
        ops=frozenset(recorder.ops),
    )


def _check_inputs(inputs: Sequence[Sequence[tf.Tensor]]) -> None:
    if not inputs:
        raise errors.ArgumentError(
            "`inputs` must have the tensors of one replica at least; got none."
        )
    for replica, tensors in enumerate(inputs):
        same = len(tensors) == len(inputs[0]) and all(
            a.dtype == b.dtype and a.shape.is_compatible_with(b.shape)
            for a, b in zip(tensors, inputs[0])
        )
        if not same:
            raise errors.ArgumentError(
                "All replicas must have inputs of the same types and shapes;"
                f" got {_describe(inputs[0])} for replica 0 and"
                f" {_describe(tensors)} for replica {replica}."
            )


def _describe(tensors: Sequence[tf.Tensor]) -> list[str]:
    return [f"{tensor.dtype.name}{tensor.shape}" for tensor in tensors]


def _copy(
    graph: tf.Graph,
    step: StepGraph,
    given: Sequence[tf.Operation],
    inputs: Sequence[Sequence[tf.Tensor]],
) -> tuple[Copies, tf.Operation, bool]:
    """Makes the replicas 1 and up.

    Returns the ops of all replicas, the start of a loop, and whether replicas
    wait for one another while they run.
    """
    replicas = len(inputs)
    functions = FunctionCopies(graph, step, replicas)
    known, meetings = [], []
    for op in step.collectives() if replicas > 1 else ():
        who = tf.get_static_value(op.inputs[1])
        if who is None or step.is_inner(op):
            meetings.append(op)
        else:
            known.append((op, who.tolist()))
    for op in meetings:
        functions.meet(op)
    copies: Copies = [{op: op for op in step.ops}]
    starts = []
    for replica in range(1, replicas):
        variables = {}
        for variable in step.own_variables:
            copy, assign = _variable_of(graph, variable, replica)
            variables[variable.outputs[0].name] = copy
            starts.append(assign)
        tensors = {
            op.name: tensor for op, tensor in zip(given, inputs[replica])
        }
        copies.append(
            step.copy(
                replica, tensors, variables, functions.of_replica(replica)
            )
        )
    step.become_the_first()
    with private.outside_of_contexts(graph):
        for op, who in known:
            exchange(op, who, copies)
        start = tf.group(*starts, name="start_of_loop")
    return copies, start, bool(meetings) or functions.have_collectives


def _variable_of(
    graph: tf.Graph, variable: tf.Operation, replica: int
) -> tuple[tf.Tensor, tf.Operation]:
    """A replica's own variable, and what gives it replica 0's value."""
    handle = variable.outputs[0]
    dtype = variable.get_attr("dtype")
    name = variable.get_attr("shared_name").decode() or variable.name
    with (
        private.outside_of_contexts(graph),
        tf.device(variable.device or None),
        tf.name_scope(f"replica_{replica}_variables"),
    ):
        copy = tf.raw_ops.VarHandleOp(
            dtype=dtype,
            shape=variable.get_attr("shape"),
            container=variable.get_attr("container"),
            shared_name=f"{name}/replica_{replica}",
            name=variable.name,
        )
        assign = tf.raw_ops.AssignVariableOp(
            resource=copy,
            value=tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype),
        )
    return copy, assign


def _wait_for_all(
    graph: tf.Graph, outputs: list[list[Any]], places: Sequence[int]
) -> None:
    """Makes every output need all replicas: who is left out is waited for."""
    ends = [leaves[i] for leaves in outputs for i in places]
    with private.outside_of_contexts(graph):
        every = tf.group(*ends, name="all_replicas")
        with tf.control_dependencies([every]):
            for leaves in outputs:
                for i in places:
                    leaf = leaves[i]
                    leaves[i] = (
                        every
                        if isinstance(leaf, tf.Operation)
                        else tf.identity(leaf)
                    )
