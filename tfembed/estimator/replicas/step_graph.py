"""Records the ops of a step, and copies them for replicas.

After a sum over all replicas, every replica computes the same. Ops that depend
only on such sums, on constants and on variables with the same value in all
replicas run once; usually these are a whole optimizer with its slots and the
global step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator.private import control_flow
from tfembed.estimator.replicas.variable_order import is_read, variable_behind

COLLECTIVES = frozenset({"AllToAll", "CollectivePermute", "CrossReplicaSum"})

# Op types that exist only on TPUs, and the replacement of each.
_NOT_HERE = {
    "InfeedDequeue": "take what the step needs as features",
    "InfeedDequeueTuple": "take what the step needs as features",
    "OutfeedEnqueue": "return the tensors by `host_call`",
    "OutfeedEnqueueTuple": "return the tensors by `host_call`",
    "TPUPartitionedCall": "call the function itself",
    "TPUReplicateMetadata": "call the computation itself, without tpu.rewrite",
}
# Op types for inputs that differ between replicas.
_REPLICATED = "TPUReplicatedInput"
_LARGEST_SEED = 2**63 - 1
# Op types that take or pass on a handle, without reading the variable.
_HANDLES_ONLY = frozenset(
    {"Enter", "Exit", "Identity", "Merge", "NextIteration", "Switch"}
)


class Recorder(control_flow.XLAControlFlowContext):
    """The control flow context of a step, which records its ops in order.

    TensorFlow treats these ops like those of a TPU's program.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tf.Operation] = []

    def AddOp(self, op: tf.Operation) -> None:
        """Records a new op; TensorFlow calls this method."""
        if any(control_flow.is_ref(tensor) for tensor in op.inputs):
            raise NotImplementedError(
                "Non-resource Variables are not supported inside TPU"
                f" computations (operator name: {op.name}). Make the variable"
                " with use_resource=True."
            )
        self.ops.append(op)
        control_flow.mark_values(self, op)

    def AddInnerOp(self, op: tf.Operation) -> None:
        """Records an op in a loop or branch of the step."""
        self.AddOp(op)


@dataclasses.dataclass(frozen=True)
class FunctionNames:
    """The names of a replica's copies of functions.

    Attributes:
      names: the names of the copies, by (name of the calling op, name of the
        function).
      library: a FunctionDefLibrary with the copies.
    """

    names: Mapping[tuple[str, str], str]
    library: Any


class StepGraph:
    """A recorded step, which can be copied.

    Attributes:
      ops: the recorded ops that the step's outputs need, and the ops outside
        the step that read variables for it.
      own_variables: the variables of which each replica has a copy.
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
        """The ops that sum or exchange tensors between replicas.

        Collectives in functions are not included.
        """
        return [op for op in self.ops if op.type in COLLECTIVES]

    def is_inner(self, op: tf.Operation) -> bool:
        """Whether an op is in a control flow v1 loop or branch."""
        return bool(control_flow.frames_around(op))

    def functions(self) -> Iterator[tuple[tf.Operation, str, str]]:
        """Yields (op, attribute, name) of each function that an op calls."""
        for op in self.ops:
            for name, value in op.node_def.attr.items():
                for function in functions_of(value):
                    yield op, name, function.name

    def become_the_first(self) -> None:
        """Connects the step's ops to the inputs and number of replica 0."""
        for op in self._copied:
            for index, tensor in enumerate(op.inputs):
                if tensor.op.type == _REPLICATED:
                    control_flow.replace_input(op, index, tensor.op.inputs[0])
        for op in self._copied:
            if op.type == "XlaReplicaId":
                with control_flow.outside_of_contexts(op.graph):
                    control_flow.use_instead(op, tf.constant(0, tf.int32).op)

    def copy(
        self,
        replica: int,
        given: Mapping[str, tf.Tensor],
        variables: Mapping[str, tf.Tensor],
        functions: FunctionNames,
    ) -> dict[tf.Operation, tf.Operation]:
        """Creates the ops of another replica.

        Args:
          replica: the number of the replica, from 1.
          given: the replica's inputs, by the names of their consumers.
          variables: the handles of the replica's own variables, by the names
            of replica 0's handles.
          functions: the replica's copies of functions.

        Returns:
          The copy of each op; ops that replicas share map to themselves.
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
        with control_flow.outside_of_contexts(graph):
            copies = tf.graph_util.import_graph_def(
                definition,
                input_map=inputs,
                name=f"replica_{replica}",
                return_elements=[op.name for op in self._copied],
            )
        made = dict(zip(self._copied, copies))
        for op in self._copied:
            # The import drops control edges from ops outside the copy.
            others = [i for i in op.control_inputs if i not in made]
            if others:
                control_flow.add_control_inputs(made[op], others)
        for op in self._shared:
            waits_for = [made[i] for i in op.control_inputs if i in made]
            if waits_for:
                control_flow.add_control_inputs(op, waits_for)
        made.update((op, op) for op in self._shared)
        return made

    def _place_inputs(
        self,
        node: Any,
        replica: int,
        variables: Mapping[str, tf.Tensor],
        inputs: dict[str, tf.Tensor],
    ) -> None:
        """Keeps inputs from copied ops, and collects all other tensors."""
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
    """Changes a copied NodeDef so that it does not collide with replica 0's.

    Loops get their own frame names, and random ops other seeds.
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
        # An odd factor keeps seeds distinct. Two zeros would mean a random
        # seed.
        seed = attributes["seed2"].i + replica * 0x9E3779B97F4A7C15
        attributes["seed2"].i = seed % _LARGEST_SEED or 1


def is_random(node: Any) -> bool:
    """Whether a NodeDef is a random op with seeds in its attributes."""
    attributes = node.attr
    return (
        "seed" in attributes
        and "seed2" in attributes
        and bool(attributes["seed"].i or attributes["seed2"].i)
    )


def functions_of(value: Any) -> list[Any]:
    """Returns the NameAttrLists of functions in an AttrValue."""
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
    """Yields (op, variable) of all assignments, those in functions too."""
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
    """Returns the ops outside the step that read a variable for the step."""
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


# Op types whose assigned value depends only on their inputs.
_WRITES = (
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    "AssignVariableOp",
    "ResourceApply",
    "ResourceScatter",
    "ResourceSparseApply",
)
# Stateless op types whose result differs between replicas.
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
    """Finds the ops and variables that replicas share.

    Args:
      ops: the ops of a step, in topological order.
      is_own: whether an op differs between replicas, for instance an input.
      writes: pairs (op, the variable that it assigns).
      replicas: the number of replicas.

    Returns:
      The ops that all replicas share, and the variables that they do not
      share.
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
    """Whether an op is a sum over all replicas, with the same result in all."""
    if op.type != "CrossReplicaSum":
        return False
    groups = tf.get_static_value(op.inputs[1])
    return groups is not None and groups.shape == (1, replicas)


def _says_all_by_inputs(op: tf.Operation) -> bool:
    """Whether equal inputs give an op equal results and effects."""
    if op.type.startswith(_WRITES) or is_read(op):
        return True
    definition = control_flow.op_def(op.type)
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
    """Whether a tensor has the same value in all replicas."""
    if tensor.op in inside:
        return tensor.op in shared
    if tensor.op.type == "TPUReplicatedInput":
        return False
    return tensor.dtype != tf.resource or variable_behind(tensor) not in own
