"""The ops of a step, as they are created, and copies of them for replicas.

Behind a sum over all replicas every replica computes the same. What only depends
on such sums, on constants and on variables that are the same in all replicas is
done once; as a rule that is a whole optimizer, its slots and the global step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator import private
from tfembed.estimator.replicas.variable_order import is_read, variable_behind

COLLECTIVES = frozenset({"AllToAll", "CollectivePermute", "CrossReplicaSum"})

# Ops that exist on TPUs alone, and what to do instead.
_NOT_HERE = {
    "InfeedDequeue": "take what the step needs as features",
    "InfeedDequeueTuple": "take what the step needs as features",
    "OutfeedEnqueue": "return the tensors by `host_call`",
    "OutfeedEnqueueTuple": "return the tensors by `host_call`",
    "TPUPartitionedCall": "call the function itself",
    "TPUReplicateMetadata": "call the computation itself, without tpu.rewrite",
}
# Inputs of which each replica has its own.
_REPLICATED = "TPUReplicatedInput"
_LARGEST_SEED = 2**63 - 1
# Ops that take or hand on a handle, without a look at the variable.
_HANDLES_ONLY = frozenset(
    {"Enter", "Exit", "Identity", "Merge", "NextIteration", "Switch"}
)


class Recorder(private.XLAControlFlowContext):
    """The context that a step's ops are created in: keeps them, in order.

    TensorFlow treats ops in it like those of a TPU's program.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tf.Operation] = []

    def AddOp(self, op: tf.Operation) -> None:
        """TensorFlow calls this for each op that is created."""
        if any(private.is_ref(tensor) for tensor in op.inputs):
            raise NotImplementedError(
                "Non-resource Variables are not supported inside TPU"
                f" computations (operator name: {op.name}). Make the variable"
                " with use_resource=True."
            )
        self.ops.append(op)
        private.mark_values(self, op)

    def AddInnerOp(self, op: tf.Operation) -> None:
        """Records an op in a loop or branch of the step."""
        self.AddOp(op)


@dataclasses.dataclass(frozen=True)
class FunctionNames:
    """A replica's own copies of functions.

    Attributes:
      names: the copies' names by the names of the op that calls and of the
        function.
      library: a FunctionDefLibrary with the copies.
    """

    names: Mapping[tuple[str, str], str]
    library: Any


class StepGraph:
    """A recorded step, ready to be copied.

    Attributes:
      ops: what the step's outputs need of the recorded ops, and the ops around
        the step that hand it variables' values.
      own_variables: the variables that each replica has for itself.
    """

    def __init__(
        self,
        recorder: Recorder,
        needed: Iterable[tf.Operation],
        given: Iterable[tf.Operation],
        replicas: int,
    ) -> None:
        self._recorder = recorder
        needed, own = set(needed), set(given)
        recorded = [op for op in recorder.ops if op in needed]
        writes = list(_writes(recorded))
        around = _readers_around(recorded, {v for _, v in writes})
        self.ops = [*around, *recorded]
        for op in recorded:
            _check(op, replicas)
        self._shared, self.own_variables = shared_ops(
            self.ops,
            lambda op: op in own or self.is_inner(op),
            writes,
            replicas,
        )
        self._copied = [op for op in self.ops if op not in self._shared]
        self._names = {op.name for op in self._copied}
        self._nodes: list[Any] = []

    def collectives(self) -> list[tf.Operation]:
        """The ops by which replicas sum and exchange tensors.

        Collectives in functions are left out.
        """
        return [op for op in self.ops if op.type in COLLECTIVES]

    def is_inner(self, op: tf.Operation) -> bool:
        """Whether an op stands in a loop or branch of version 1."""
        return bool(private.frames_around(op))

    def functions(self) -> Iterator[tuple[tf.Operation, str, str]]:
        """(op, attribute, name) of each function that an op of the step calls."""
        for op in self.ops:
            for name, value in op.node_def.attr.items():
                for function in functions_of(value):
                    yield op, name, function.name

    def become_the_first(self) -> None:
        """Gives the ops of the step the inputs and the number of replica 0."""
        for op in self._copied:
            for index, tensor in enumerate(op.inputs):
                if tensor.op.type == _REPLICATED:
                    private.replace_input(op, index, tensor.op.inputs[0])
        for op in self._copied:
            if op.type == "XlaReplicaId":
                with private.outside_of_contexts(op.graph):
                    private.use_instead(op, tf.constant(0, tf.int32).op)

    def copy(
        self,
        replica: int,
        given: Mapping[str, tf.Tensor],
        variables: Mapping[str, tf.Tensor],
        functions: FunctionNames,
    ) -> dict[tf.Operation, tf.Operation]:
        """Makes the ops of another replica.

        Args:
          replica: its number, from 1.
          given: the replica's inputs, by the names of the ops that take them.
          variables: handles of the replica's own variables, by the names of
            replica 0's handles.
          functions: the replica's own copies of functions.

        Returns:
          The copy of each op; what replicas share is its own copy.
        """
        graph = self.ops[0].graph
        definition = tf.compat.v1.GraphDef(library=functions.library)
        definition.versions.producer = graph.graph_def_versions.producer
        inputs: dict[str, tf.Tensor] = {}
        if not self._nodes:
            self._nodes = [op.node_def for op in self._copied]
        for op, node in zip(self._copied, self._nodes):
            copy = definition.node.add()
            copy.CopyFrom(node)
            if op.name in given:
                copy.input[0] = f"{op.name}/of_replica"
                inputs[copy.input[0]] = given[op.name]
            self._place_inputs(copy, replica, variables, inputs)
            differ(copy, replica)
            for value in copy.attr.values():
                for function in functions_of(value):
                    function.name = functions.names.get(
                        (op.name, function.name), function.name
                    )
        with private.outside_of_contexts(graph):
            copies = tf.graph_util.import_graph_def(
                definition,
                input_map=inputs,
                name=f"replica_{replica}",
                return_elements=[op.name for op in self._copied],
            )
        made = dict(zip(self._copied, copies))
        for op in self._copied:
            # The import knows no control edges from other ops.
            others = [i for i in op.control_inputs if i not in made]
            if others:
                private.add_control_inputs(made[op], others)
        for op in self._shared:
            waits_for = [made[i] for i in op.control_inputs if i in made]
            if waits_for:
                private.add_control_inputs(op, waits_for)
        made.update((op, op) for op in self._shared)
        return made

    def _place_inputs(
        self,
        node: Any,
        replica: int,
        variables: Mapping[str, tf.Tensor],
        inputs: dict[str, tf.Tensor],
    ) -> None:
        """Leaves the edges between copies, and finds what others lead to."""
        graph = self.ops[0].graph
        kept = []
        for name in node.input:
            if name.startswith("^"):
                if name[1:] in self._names:
                    kept.append(name)
                continue
            kept.append(name)
            base, _, index = name.partition(":")
            if base not in self._names and name not in inputs:
                full = f"{base}:{index or 0}"
                own = variables.get(full)
                if own is None:
                    own = graph.get_tensor_by_name(full)
                if own.op.type == _REPLICATED:
                    own = own.op.inputs[replica]
                inputs[name] = own
        del node.input[:]
        node.input.extend(kept)


def differ(node: Any, replica: int) -> None:
    """Makes a copied NodeDef another one than that of replica 0.

    Loops get frames of their own, and random ops draw other numbers.
    """
    attributes = node.attr
    if "_class" in attributes:
        del attributes["_class"]
    if node.op == "XlaReplicaId":
        node.op = "Const"
        attributes["dtype"].type = tf.int32.as_datatype_enum
        attributes["value"].tensor.CopyFrom(
            tf.make_tensor_proto(replica, tf.int32, [])
        )
    if "frame_name" in attributes:
        attributes["frame_name"].s += b"/replica_%d" % replica
    if "shared_name" in attributes and attributes["shared_name"].s:
        attributes["shared_name"].s += b"/replica_%d" % replica
    if "_tfembed_replica" in attributes:
        attributes["_tfembed_replica"].i = replica
    if is_random(node):
        # An odd factor: seeds stay apart. Two zeros ask for a seed by chance.
        seed = attributes["seed2"].i + replica * 0x9E3779B97F4A7C15
        attributes["seed2"].i = seed % _LARGEST_SEED or 1


def is_random(node: Any) -> bool:
    """Whether a NodeDef is an op that draws numbers by seeds in attributes."""
    attributes = node.attr
    return (
        "seed" in attributes
        and "seed2" in attributes
        and bool(attributes["seed"].i or attributes["seed2"].i)
    )


def functions_of(value: Any) -> list[Any]:
    """The functions that an AttrValue names, as NameAttrLists."""
    if value.HasField("func"):
        return [value.func]
    return list(value.list.func)


def _check(op: tf.Operation, replicas: int) -> None:
    for tensor in op.inputs:
        if tensor.op.type == _REPLICATED and len(tensor.op.inputs) != replicas:
            raise errors.ArgumentError(
                f"'{tensor.op.name}' must have a tensor for each of the"
                f" {replicas} replicas; got {len(tensor.op.inputs)}."
            )
    instead = _NOT_HERE.get(op.type)
    if instead is not None:
        raise errors.UnsupportedError(
            f"Simulated replicas have no {op.type} (op '{op.name}'): {instead}."
        )


def _writes(
    ops: Sequence[tf.Operation],
) -> Iterator[tuple[tf.Operation, tf.Operation]]:
    """(op, variable) for what ops may assign, those that call functions too."""
    for op in ops:
        if is_read(op) or op.type in _HANDLES_ONLY:
            continue
        for tensor in op.inputs:
            if tensor.dtype != tf.resource:
                continue
            variable = variable_behind(tensor)
            if variable is not None and variable.type == "VarHandleOp":
                yield op, variable


def _readers_around(
    recorded: Sequence[tf.Operation], variables: set[tf.Operation]
) -> list[tf.Operation]:
    """Ops outside of the step by which a variable's value reaches its ops."""
    reaches: dict[tf.Operation, bool] = dict.fromkeys(recorded, False)
    order: list[tf.Operation] = []
    for start in recorded:
        stack = [t.op for t in start.inputs if t.op not in reaches]
        while stack:
            op = stack[-1]
            new = [
                t.op
                for t in op.inputs
                if t.op not in reaches and t.op not in stack
            ]
            if op not in reaches and new:
                stack.extend(new)
                continue
            stack.pop()
            if op in reaches:
                continue
            reads = is_read(op) and variable_behind(op.inputs[0]) in variables
            reaches[op] = reads or any(
                reaches.get(t.op, False) for t in op.inputs
            )
            if reaches[op]:
                order.append(op)
    return order


# Ops that assign a variable by what their inputs say, and by nothing else.
_WRITES = (
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    "AssignVariableOp",
    "ResourceApply",
    "ResourceScatter",
    "ResourceSparseApply",
)
# Stateless ops that each replica has for itself.
_OWN = frozenset(
    {
        "ControlTrigger",
        "Enter",
        "Exit",
        "LoopCond",
        "Merge",
        "NextIteration",
        "NoOp",
        "Switch",
        "XlaReplicaId",
    }
)


def shared_ops(
    ops: Sequence[tf.Operation],
    is_own: Callable[[tf.Operation], bool],
    writes: Iterable[tuple[tf.Operation, tf.Operation]],
    replicas: int,
) -> tuple[set[tf.Operation], list[tf.Operation]]:
    """Finds what replicas share.

    Args:
      ops: the ops of a step, each behind those that it needs.
      is_own: tells ops that each replica has for itself, such as inputs.
      writes: pairs of an op that assigns and the variable.
      replicas: how many there are.

    Returns:
      The ops that all replicas share, and the variables that they do not.
    """
    writes = list(writes)
    inside = set(ops)
    own: dict[tf.Operation, None] = {}
    while True:
        shared: set[tf.Operation] = set()
        for op in ops:
            if not is_own(op) and (
                is_whole_sum(op, replicas)
                or (
                    _says_all_by_inputs(op)
                    and all(
                        _is_same(tensor, inside, shared, own)
                        for tensor in op.inputs
                    )
                )
            ):
                shared.add(op)
        more = [v for op, v in writes if op not in shared and v not in own]
        if not more:
            return shared, list(own)
        own.update(dict.fromkeys(more))


def is_whole_sum(op: tf.Operation, replicas: int) -> bool:
    """Whether an op sums over all replicas, so that all have the result."""
    if op.type != "CrossReplicaSum":
        return False
    groups = tf.get_static_value(op.inputs[1])
    return groups is not None and groups.shape == (1, replicas)


def _says_all_by_inputs(op: tf.Operation) -> bool:
    """Whether equal inputs make an op do the same."""
    if op.type.startswith(_WRITES) or is_read(op):
        return True
    definition = private.op_def(op.type)
    return (
        definition is not None
        and not definition.is_stateful
        and op.type not in _OWN
        and not any("func" in attr.type for attr in definition.attr)
    )


def _is_same(
    tensor: tf.Tensor,
    inside: set[tf.Operation],
    shared: set[tf.Operation],
    own: dict[tf.Operation, None],
) -> bool:
    """Whether a tensor is the same in all replicas."""
    if tensor.op in inside:
        return tensor.op in shared
    if tensor.op.type == "TPUReplicatedInput":
        return False
    return tensor.dtype != tf.resource or variable_behind(tensor) not in own
