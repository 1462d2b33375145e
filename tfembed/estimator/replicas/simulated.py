"""Replicas of a step of TensorFlow 1 in one process, without a TPU.

The step's Python runs once. What it adds to the graph is replica 0; the others
are copies of those ops in the same graph. All replicas run in one session call,
on whatever threads the session has. Collectives at the top of a step become
ordinary ops between the replicas: fetching one replica's output so runs what that
needs of all replicas, and no replica waits for another in the middle of a step.
The bodies of loops and branches (control flow v2) and of tf.functions are not ops
of the graph: a replica gets its own copy of a function whose ops differ between
replicas, as random ops with seeds and collectives do.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator import private
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

# The ops of each replica, by replica 0's.
Copies = list[dict[tf.Operation, tf.Operation]]

_NUMBERS = itertools.count()


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


def exchange(
    op: tf.Operation, who: Sequence[Sequence[int]], copies: Copies
) -> None:
    """Puts ordinary ops in the place of a collective of all replicas.

    Args:
      op: the collective of replica 0.
      who: the groups of the op, or its pairs of source and target.
      copies: the ops of all replicas, `op` among them.
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
        private.use_instead(ops[op], result.op)
        ops[op] = result.op


def _sum(
    op: tf.Operation, groups: Sequence[Sequence[int]], copies: Copies
) -> None:
    """Hands the sum to each replica's own op, which passes it on."""
    ops = [made[op] for made in copies]
    terms = _terms(op, copies)
    _check_groups(op, groups, len(ops))
    narrow = terms[0].dtype in (tf.bfloat16, tf.float16)
    for group in groups:
        if len(group) == 1:
            continue
        of_group = [terms[replica] for replica in sorted(group)]
        if narrow:  # Rounded once.
            of_group = [tf.cast(term, tf.float32) for term in of_group]
        total = tf.raw_ops.AddN(inputs=of_group, name="replicas_sum")
        if narrow:
            total = tf.cast(total, terms[0].dtype)
        for replica in group:
            private.replace_input(ops[replica], 0, total)


def of_replica(
    leaf: tf.Tensor | tf.Operation, ops: dict[tf.Operation, tf.Operation]
) -> tf.Tensor | tf.Operation:
    """Returns a replica's counterpart of a tensor or operation of replica 0."""
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
    """Gives member i of a group the i-th part of each member's tensor."""
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
    """Gives each target its source's tensor, and zeros to all others."""
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
    """The copies of a step's functions, and collectives that run together.

    Attributes:
      have_collectives: whether a function has a collective.
    """

    def __init__(self, graph: tf.Graph, step: StepGraph, replicas: int) -> None:
        self._graph = graph
        self._step = step
        self._replicas = replicas
        self._known: dict[str, Any] = {}
        self._copied: dict[int, FunctionNames] = {}
        # Graphs of a process have other keys.
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
        """Makes a collective of replica 0 wait for its copies, when it runs."""
        private.set_attributes(
            op,
            {
                "_tfembed_replicas": self._replicas,
                "_tfembed_replica": 0,
                "_tfembed_key": self._key(op.name),
            },
        )
        around = private.contexts_around(op)
        for enter in self._step.ops:
            # Iterations of loops around the op come in their order.
            if enter.type == "Enter" and any(
                private.context_of(enter) is context for context in around
            ):
                private.set_attributes(enter, {"parallel_iterations": 1})

    def _key(self, path: str) -> bytes:
        return f"{self._number}:{path}".encode()

    def of_replica(self, replica: int) -> FunctionNames:
        """A replica's copies, from replica 1 on."""
        if replica in self._copied:
            return self._copied[replica]
        return FunctionNames({}, tf.compat.v1.GraphDef().library)

    def _add_for_the_first(
        self, calls: list[tuple[tf.Operation, str, str]]
    ) -> None:
        """Gives replica 0, too, copies of functions with collectives."""
        definition = tf.compat.v1.GraphDef()
        changed: dict[tf.Operation, dict[str, str]] = {}
        for op, _, name in calls:
            if self._has(name, _is_collective):
                copy = self._copy(name, op.name, 0, definition.library)
                changed.setdefault(op, {})[name] = copy
        if not changed:
            return
        self.have_collectives = True
        with private.outside_of_contexts(self._graph):
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
            private.set_attributes(op, new)

    def _has(self, name: str, asked: Callable[[Any], bool]) -> bool:
        """Whether a function, or one that it calls, has such a NodeDef."""
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
        """Adds a copy of a function to a library, and returns its name."""
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
