"""Simulates the replicas of a TensorFlow 1 step in one process, without a TPU.

The step's Python code runs once. The ops that it creates are replica 0; the
other replicas are copies of these ops in the same graph. All replicas run in
one session call, on the session's threads. Collectives at the top of a step
become ordinary ops between the replicas: fetching an output of one replica
runs the ops of all replicas that it needs, and no replica waits for another
during a step. The bodies of loops and branches (control flow v2) and of
tf.functions are not ops of the graph: a replica gets its own copy of a
function if its ops differ between replicas, for instance random ops with
seeds, and collectives.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator.private import control_flow, tpu_programs
from tfembed.estimator.replicas.step_graph import (
    COLLECTIVES,
    FunctionNames,
    Recorder,
    StepGraph,
    differ,
    functions_of,
    is_random,
)
from tfembed.estimator.replicas.variable_order import (
    needed_ops,
    order_reads_before_writes,
)

# The ops of each replica, by the op of replica 0.
Copies = list[dict[tf.Operation, tf.Operation]]

_NUMBERS = itertools.count()


@dataclasses.dataclass(frozen=True)
class Replicas:
    """A step and its copies.

    Attributes:
      outputs: for each replica the structure that `step` returned, with the
        replica's own tensors and operations.
      start_of_loop: an operation to run before the first step, if no other
        code reads or assigns variables until the last step. It copies replica
        0's values of variables to the other replicas.
      has_collectives: whether replicas sum or exchange tensors.
      ops: all ops that the step created, which are those of replica 0.
      end_of_loop: an operation to run after all others of the last step, when
        variables have their values; None if it is not needed.
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

    `step` is called once, with replica 0's inputs. In the step:

    - CrossReplicaSum, AllToAll and CollectivePermute (and so
      tf.compat.v1.tpu.CrossShardOptimizer) work between the replicas; sums are
      in the order of replicas, and thus reproducible;
    - variables belong to replica 0. If the replicas assign different values,
      for instance moving averages of their own batches, each other replica has
      a copy from `start_of_loop` on, which is in no Saver or collection: only
      replica 0's value is kept;
    - ops with the same result in all replicas, for instance an optimizer's
      step after the sum of gradients, run once;
    - ops with seeds draw other numbers in each replica. Stateless random ops
      do not: their seed is an input;
    - a read of a variable runs before writes that it does not depend on.

    Args:
      step: a function of the input tensors of a replica. It returns a
        structure of tensors and operations; all replicas share other leaves.
      inputs: the tensors of each replica, with the same dtypes and compatible
        shapes.

    Returns:
      The replicas.

    Raises:
      ArgumentError: there is no replica, or the inputs of replicas differ.
      UnsupportedError: an op cannot be copied; the text names it.
    """
    _check_inputs(inputs)
    graph = tf.compat.v1.get_default_graph()
    recorder = Recorder()
    first = len(graph.get_operations())
    with tpu_programs.shard_context(len(inputs)):
        recorder.Enter()
        try:
            with control_flow.resource_variables():
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
    control_flow.forget_tpu_devices(graph.get_operations()[first:])
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
    """Makes the replicas from 1 on.

    Returns the ops of all replicas, the op `start_of_loop`, and whether
    replicas wait for each other while they run.
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
    with control_flow.outside_of_contexts(graph):
        for op, who in known:
            exchange(op, who, copies)
        start = tf.group(*starts, name="start_of_loop")
    return copies, start, bool(meetings) or functions.have_collectives


def _variable_of(
    graph: tf.Graph, variable: tf.Operation, replica: int
) -> tuple[tf.Tensor, tf.Operation]:
    """Makes a replica's copy of a variable, and an op that sets its value."""
    handle = variable.outputs[0]
    dtype = variable.get_attr("dtype")
    name = variable.get_attr("shared_name").decode() or variable.name
    with (
        control_flow.outside_of_contexts(graph),
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
    """Makes every output depend on all replicas, so that none waits forever."""
    ends = [leaves[i] for leaves in outputs for i in places]
    with control_flow.outside_of_contexts(graph):
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


def exchange(
    op: tf.Operation, who: Sequence[Sequence[int]], copies: Copies
) -> None:
    """Replaces a collective of all replicas by ordinary ops.

    Args:
      op: the collective of replica 0.
      who: the groups of the op, or its (source, target) pairs.
      copies: the ops of all replicas, including `op`.
    """
    if op.type == "CrossReplicaSum":
        _sum(op, who, copies)
        return
    terms = _terms(op, copies)
    if op.type == "AllToAll":
        results = _all_to_all(op, who, terms)
    else:
        results = _permute(op, who, terms)
    for ops, result in zip(copies, results):
        control_flow.use_instead(ops[op], result.op)
        ops[op] = result.op


def _sum(
    op: tf.Operation, groups: Sequence[Sequence[int]], copies: Copies
) -> None:
    """Computes the sum, and feeds it to each replica's collective op."""
    ops = [made[op] for made in copies]
    terms = _terms(op, copies)
    _check_groups(op, groups, len(ops))
    narrow = terms[0].dtype in (tf.bfloat16, tf.float16)
    for group in groups:
        if len(group) == 1:
            continue
        of_group = [terms[replica] for replica in sorted(group)]
        if narrow:  # The sum is rounded once.
            of_group = [tf.cast(term, tf.float32) for term in of_group]
        total = tf.raw_ops.AddN(inputs=of_group, name="replicas_sum")
        if narrow:
            total = tf.cast(total, terms[0].dtype)
        for replica in group:
            control_flow.replace_input(ops[replica], 0, total)


def of_replica(
    leaf: tf.Tensor | tf.Operation, ops: dict[tf.Operation, tf.Operation]
) -> tf.Tensor | tf.Operation:
    """Returns a replica's copy of a tensor or operation of replica 0."""
    if isinstance(leaf, tf.Operation):
        return ops.get(leaf, leaf)
    op = ops.get(leaf.op)
    return leaf if op is None else op.outputs[leaf.value_index]


def _terms(op: tf.Operation, copies: Copies) -> list[tf.Tensor]:
    return [of_replica(op.inputs[0], ops) for ops in copies]


def _all_to_all(
    op: tf.Operation,
    groups: Sequence[Sequence[int]],
    terms: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Gives member i of a group part i of each member's tensor."""
    _check_groups(op, groups, len(terms))
    count = op.get_attr("split_count")
    results = list(terms)
    for group in groups:
        if len(group) != count:
            raise errors.ArgumentError(
                "AllToAll must split by as many parts as a group has replicas;"
                f" got {count} parts for the group {list(group)} (op"
                f" '{op.name}')."
            )
        parts = [
            tf.split(terms[replica], count, op.get_attr("split_dimension"))
            for replica in group
        ]
        for i, replica in enumerate(group):
            results[replica] = tf.identity(
                tf.concat(
                    [of_member[i] for of_member in parts],
                    op.get_attr("concat_dimension"),
                )
            )
    return results


def _permute(
    op: tf.Operation, pairs: Sequence[Sequence[int]], terms: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Gives each target its source's tensor, and all others zeros."""
    sources = [source for source, _ in pairs]
    targets = [target for _, target in pairs]
    for named in (sources, targets):
        if len(set(named)) < len(named) or not set(named) <= set(
            range(len(terms))
        ):
            raise errors.ArgumentError(
                "`source_target_pairs` must name a replica at most once as a"
                f" source and once as a target; got {[list(p) for p in pairs]}"
                f" for {len(terms)} replicas (op '{op.name}')."
            )
    of_target = dict(zip(targets, sources))
    return [
        tf.identity(terms[of_target[replica]])
        if replica in of_target
        else tf.zeros_like(terms[replica])
        for replica in range(len(terms))
    ]


def _check_groups(
    op: tf.Operation, groups: Sequence[Sequence[int]], replicas: int
) -> None:
    named = sorted(replica for group in groups for replica in group)
    if named != list(range(replicas)):
        raise errors.ArgumentError(
            "`group_assignment` must name each replica once; got"
            f" {[list(group) for group in groups]} for {replicas} replicas"
            f" (op '{op.name}')."
        )


class FunctionCopies:
    """The replicas' copies of a step's functions, and collectives in them.

    Attributes:
      have_collectives: whether a function has a collective.
    """

    def __init__(self, graph: tf.Graph, step: StepGraph, replicas: int) -> None:
        self._graph = graph
        self._step = step
        self._replicas = replicas
        self._known: dict[str, Any] = {}
        self._copied: dict[int, FunctionNames] = {}
        # A key for each graph of the process.
        self._number = next(_NUMBERS)
        self.have_collectives = False
        calls = list(step.functions()) if replicas > 1 else []
        if not calls:
            return
        self._known = {
            function.signature.name: function
            for function in graph.as_graph_def().library.function
        }
        self._add_for_the_first(calls)
        for replica in range(1, replicas):
            names: dict[tuple[str, str], str] = {}
            library: Any = tf.compat.v1.GraphDef().library
            for op, _, name in step.functions():
                if self._has(name, _differs):
                    names[op.name, name] = self._copy(
                        name, op.name, replica, library
                    )
            self._copied[replica] = FunctionNames(names, library)

    def meet(self, op: tf.Operation) -> None:
        """Makes a collective of replica 0 wait for its copies at run time."""
        control_flow.set_attributes(
            op,
            {
                "_tfembed_replicas": self._replicas,
                "_tfembed_replica": 0,
                "_tfembed_key": self._key(op.name),
            },
        )
        around = control_flow.contexts_around(op)
        for enter in self._step.ops:
            # The iterations of loops around the op run in order.
            if enter.type == "Enter" and any(
                control_flow.context_of(enter) is context for context in around
            ):
                control_flow.set_attributes(enter, {"parallel_iterations": 1})

    def _key(self, path: str) -> bytes:
        return f"{self._number}:{path}".encode()

    def of_replica(self, replica: int) -> FunctionNames:
        """Returns the function copies of a replica other than 0."""
        if replica in self._copied:
            return self._copied[replica]
        return FunctionNames({}, tf.compat.v1.GraphDef().library)

    def _add_for_the_first(
        self, calls: list[tuple[tf.Operation, str, str]]
    ) -> None:
        """Gives replica 0 its own copies of functions with collectives, too."""
        definition = tf.compat.v1.GraphDef()
        changed: dict[tf.Operation, dict[str, str]] = {}
        for op, _, name in calls:
            if self._has(name, _is_collective):
                copy = self._copy(name, op.name, 0, definition.library)
                changed.setdefault(op, {})[name] = copy
        if not changed:
            return
        self.have_collectives = True
        with control_flow.outside_of_contexts(self._graph):
            tf.graph_util.import_graph_def(definition, name="replica_0")
        for function in definition.library.function:
            self._known[function.signature.name] = function
        for op, names in changed.items():
            new = {}
            for attribute, value in op.node_def.attr.items():
                for function in functions_of(value):
                    if function.name in names:
                        function.name = names[function.name]
                        new[attribute] = value
            if "parallel_iterations" in op.node_def.attr:
                new["parallel_iterations"] = 1
            control_flow.set_attributes(op, new)

    def _has(self, name: str, asked: Callable[[Any], bool]) -> bool:
        """Whether a NodeDef of a function, or of its callees, passes a test."""
        seen, todo = {name}, [name]
        while todo:
            function = self._known.get(todo.pop())
            for node in function.node_def if function is not None else ():
                if asked(node):
                    return True
                for called in _called(node):
                    if called not in seen:
                        seen.add(called)
                        todo.append(called)
        return False

    def _copy(self, name: str, path: str, replica: int, library: Any) -> str:
        """Adds a copy of a function to a library; returns the copy's name."""
        function = library.function.add()
        function.CopyFrom(self._known[name])
        place = re.sub(r"\W", "_", path)
        copy = f"{name.partition('__at__')[0]}__at__{place}_replica_{replica}"
        function.signature.name = copy
        for node in function.node_def:
            at = f"{path}/{node.name}"
            if node.op in COLLECTIVES:
                if replica == 0:
                    node.attr["_tfembed_key"].s = self._key(at)
                node.attr["_tfembed_replicas"].i = self._replicas
                node.attr["_tfembed_replica"].i = replica
            if replica > 0:
                differ(node, replica)
            for called in _called(node):
                if not self._has(called, _differs):
                    continue
                own = self._copy(called, at, replica, library)
                _rename(node, called, own)
                if "parallel_iterations" in node.attr:
                    node.attr["parallel_iterations"].i = 1
        return copy


def _is_collective(node: Any) -> bool:
    return node.op in COLLECTIVES


def _differs(node: Any) -> bool:
    return _is_collective(node) or is_random(node)


def _called(node: Any) -> list[str]:
    names = [
        f.name for value in node.attr.values() for f in functions_of(value)
    ]
    return [*dict.fromkeys(names), node.op]


def _rename(node: Any, name: str, copy: str) -> None:
    if node.op == name:
        node.op = copy
    for value in node.attr.values():
        for function in functions_of(value):
            if function.name == name:
                function.name = copy
