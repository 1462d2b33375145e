"""The order of reads and writes of variables in a step of TensorFlow 1.

A graph does not say whether an op that reads a variable runs before or after an
op that assigns it, where neither needs the other. A TPU's program does: such a
read sees the value from before the step. `order_reads_before_writes` makes it so
in a graph, by control edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.estimator import private

# Ops that only read the variable behind a handle.
_READS = frozenset(
    {
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VarIsInitializedOp",
        "VariableShape",
        "_ReadVariablesOp",
    }
)
# Ops that take a batch, or say that there is none.
_TAKES_INPUT = ("IteratorGetNext", "QueueDequeue")
# Ops that are sure to write; others that take a handle, as the calls of
# functions, may stand behind a read that hooks fetch without a batch.
_WRITES = (
    "Apply",
    "Assign",
    "ResourceApply",
    "ResourceScatter",
    "ResourceSparseApply",
    "Scatter",
    "SparseApply",
)
# Ops that hand on a handle or a reference.
_PASS_ON = frozenset(
    {
        "Enter",
        "Exit",
        "Identity",
        "Merge",
        "NextIteration",
        "RefEnter",
        "RefExit",
        "RefIdentity",
        "RefMerge",
        "RefNextIteration",
        "RefSwitch",
        "Switch",
    }
)
# Ops whose output may lie in the memory of their input.
_ALIASES = _PASS_ON | {"ExpandDims", "Reshape", "Squeeze", "StopGradient"}
# Ops that run around the loop, or the branch, that they are created in.
_GATES_OF_LOOPS = frozenset({"Enter", "Exit", "RefEnter", "RefExit"})
_GATES_OF_BRANCHES = frozenset({"RefSwitch", "Switch"})
_WAYS_OUT = frozenset({"Exit", "Merge", "RefExit", "RefMerge"})


def is_read(op: tf.Operation) -> bool:
    """Whether an op that takes a variable's handle leaves the variable be."""
    return op.type in _READS or (
        op.type.startswith("Tfembed>") and "Lookup" in op.type
    )


def variable_behind(tensor: tf.Tensor) -> tf.Operation | None:
    """The op that made the variable of a handle or reference, if it is found."""
    op = tensor.op
    seen = set()
    while op.type in _PASS_ON and op.inputs and op not in seen:
        seen.add(op)
        op = op.inputs[0].op
    known = ("VarHandleOp", "VariableV2", "Variable")
    return op if op.type in known else None


def needed_ops(
    outputs: Iterable[tf.Tensor | tf.Operation],
) -> list[tf.Operation]:
    """All ops that run when `outputs` are fetched, in no order."""
    found: dict[tf.Operation, None] = {}
    todo = [_op_of(output) for output in outputs]
    while todo:
        op = todo.pop()
        if op in found:
            continue
        found[op] = None
        todo.extend(tensor.op for tensor in op.inputs)
        todo.extend(op.control_inputs)
    return list(found)


def order_reads_before_writes(
    outputs: Iterable[tf.Tensor | tf.Operation],
) -> int:
    """Adds control edges from reads of variables to writes of them.

    Looks at the ops that `outputs` need. A read that does not depend on a write
    of its variable, through data or control edges, comes before that write. The
    ops must not have run in a session yet.

    Args:
      outputs: tensors and operations of one graph.

    Returns:
      How many edges were added; a second call adds none.
    """
    ops = needed_ops(outputs)
    uses = _Uses(ops)
    if not uses.writes:
        return 0
    needs = _needs(ops)
    bits = {
        write: 1 << i
        for i, write in enumerate(
            {w: None for writes in uses.writes.values() for w in writes}
        )
    }
    behind = _writes_behind(needs, bits)
    edges: dict[tuple[tf.Operation, tf.Operation], None] = {}
    for variable, writes in uses.writes.items():
        for read in uses.reads.get(variable, ()):
            for write in writes:
                if read is write or behind[read] & bits[write]:
                    continue
                for first, then in _edges(read, write, variable):
                    if first in behind and first not in then.control_inputs:
                        edges[first, then] = None
    return _add(edges, needs)


def order_input_before_writes(
    outputs: Iterable[tf.Tensor | tf.Operation],
) -> None:
    """Adds control edges from batches of the input to writes of variables.

    So a step whose input has ended leaves all variables as they were: also the
    global step and other variables that do not depend on a batch.

    Args:
      outputs: tensors and operations of one graph, which no session has run.
    """
    ops = needed_ops(outputs)
    takes = [
        op
        for op in ops
        if op.type.startswith(_TAKES_INPUT)
        and _is_at_top(op)
        and not _is_signal(op)
    ]
    before = set(needed_ops(takes))
    writes = {
        write: None
        for writes in _Uses(ops).writes.values()
        for write in writes
        if write.type.startswith(_WRITES)
        and write not in before
        and _is_at_top(write)
    }
    if not takes or not writes:
        return
    with (
        private.outside_of_contexts(takes[0].graph),
        tf.device(takes[0].device or None),
        tf.control_dependencies(takes),
    ):
        all_there = tf.no_op("input_is_there")
    for write in writes:
        private.add_control_inputs(write, [all_there])


def _is_signal(op: tf.Operation) -> bool:
    """Whether an op waits for an element of a queue, and takes nothing of it."""
    return op.type.startswith("QueueDequeue") and not any(
        tensor.consumers() for tensor in op.outputs
    )


def _is_at_top(op: tf.Operation) -> bool:
    """Whether an op is in no loop, branch or program of a TPU.

    Told by how a handle reaches the op, which copies have in common with what
    they are copied from.
    """
    if private.frames_around(op) or "_tpu_replicate" in op.node_def.attr:
        return False
    for tensor in op.inputs:
        if tensor.dtype != tf.resource and not private.is_ref(tensor):
            continue
        before = tensor.op
        while before.type in _PASS_ON and before.inputs:
            if before.type not in ("Identity", "RefIdentity"):
                return False
            before = before.inputs[0].op
    return True


def _op_of(output: tf.Tensor | tf.Operation) -> tf.Operation:
    return output if isinstance(output, tf.Operation) else output.op


class _Uses:
    """Which ops read and write which variable."""

    def __init__(self, ops: Sequence[tf.Operation]) -> None:
        self.reads: dict[tf.Operation, dict[tf.Operation, None]] = {}
        self.writes: dict[tf.Operation, dict[tf.Operation, None]] = {}
        needed = set(ops)
        for op in ops:
            if op.type in _PASS_ON and not _reads_a_reference(op):
                continue
            for tensor in op.inputs:
                if tensor.dtype == tf.resource:
                    self._note_handle(op, tensor)
                elif private.is_ref(tensor):
                    self._note_reference(op, tensor, needed)

    def _note_handle(self, op: tf.Operation, tensor: tf.Tensor) -> None:
        variable = variable_behind(tensor)
        if variable is not None:
            uses = self.reads if is_read(op) else self.writes
            uses.setdefault(variable, {})[op] = None

    def _note_reference(
        self, op: tf.Operation, tensor: tf.Tensor, needed: set[tf.Operation]
    ) -> None:
        variable = variable_behind(tensor)
        if variable is None:
            return
        if _takes_references(op, tensor):
            self.writes.setdefault(variable, {})[op] = None
            return
        reads = self.reads.setdefault(variable, {})
        # What the read gives may lie in the variable's own memory: the ops
        # that look there are the reads.
        todo, seen = [op], set()
        while todo:
            reader = todo.pop()
            if reader in seen or reader not in needed:
                continue
            seen.add(reader)
            reads[reader] = None
            if reader.type in _ALIASES:
                todo.extend(c for t in reader.outputs for c in t.consumers())


def _reads_a_reference(op: tf.Operation) -> bool:
    return (op.type == "Identity" and len(op.inputs) == 1) and private.is_ref(
        op.inputs[0]
    )


def _takes_references(op: tf.Operation, tensor: tf.Tensor) -> bool:
    """Whether the op's signature asks for a reference, rather than a value."""
    definition = private.op_def(op.type)
    if definition is None:
        return False
    names = [argument.name for argument in definition.input_arg]
    if len(names) != len(op.inputs):
        return any(argument.is_ref for argument in definition.input_arg)
    return any(
        argument.is_ref and given is tensor
        for argument, given in zip(definition.input_arg, op.inputs)
    )


def _needs(
    ops: Sequence[tf.Operation],
) -> dict[tf.Operation, list[tf.Operation]]:
    """For each op those that run before, without a loop's way back.

    Instead, what leaves a loop needs all that goes once more through the loop.
    """
    again: dict[Any, list[tf.Operation]] = {}
    for op in ops:
        if op.type in _NEXT:
            again.setdefault(private.frames_around(op)[0], []).append(op)
    needs = {}
    for op in ops:
        before = [tensor.op for tensor in op.inputs]
        before.extend(op.control_inputs)
        needs[op] = [b for b in before if b.type not in _NEXT]
        if op.type in ("Exit", "RefExit"):
            needs[op].extend(again.get(private.frames_around(op)[0], ()))
    return needs


_NEXT = frozenset({"NextIteration", "RefNextIteration"})


def _in_order(
    needs: dict[tf.Operation, list[tf.Operation]],
) -> list[tf.Operation]:
    """Sorts ops so that each stands behind what it needs."""
    order, state = [], dict.fromkeys(needs, False)
    for start in needs:
        if state[start]:
            continue
        stack = [(start, iter(needs[start]))]
        state[start] = True
        while stack:
            op, before = stack[-1]
            for other in before:
                if not state[other]:
                    state[other] = True
                    stack.append((other, iter(needs[other])))
                    break
            else:
                order.append(op)
                stack.pop()
    return order


def _writes_behind(
    needs: dict[tf.Operation, list[tf.Operation]],
    bits: dict[tf.Operation, int],
) -> dict[tf.Operation, int]:
    """For each op, a set of bits: the writes that it depends on, or is."""
    behind: dict[tf.Operation, int] = {}
    for op in _in_order(needs):
        found = bits.get(op, 0)
        for before in needs[op]:
            found |= behind[before]
        behind[op] = found
    return behind


def _places(op: tf.Operation) -> list[Any]:
    """The loops and branches that an op runs in, the innermost first.

    The graph itself is the last, as None.
    """
    frames = private.frames_around(op)
    if frames:
        is_loop = frames[0].IsWhileContext()
        gates = _GATES_OF_LOOPS if is_loop else _GATES_OF_BRANCHES
        frames = frames[op.type in gates :]
    return [*frames, None]


def _edges(
    read: tf.Operation, write: tf.Operation, variable: tf.Operation
) -> list[tuple[tf.Operation, tf.Operation]]:
    """Control edges that make `read` come first, in whatever loops both are."""
    reads_in, writes_in = _places(read), _places(write)
    if reads_in[0] is writes_in[0]:
        return [(read, write)]
    common = next(c for c in writes_in if any(c is r for r in reads_in))
    after = [read] if reads_in[0] is common else _left_by(read, common)
    if writes_in[0] is common:
        before = [write]
    else:
        before = _entered_by(write, variable, common)
    return [(a, b) for a in after for b in before]


def _left_by(read: tf.Operation, common: Any) -> list[tf.Operation]:
    """Ops in `common` that show that the loops and branches of `read` ended."""
    found, seen, todo = [], {read}, [read]
    while todo:
        op = todo.pop()
        if op.type in _WAYS_OUT and _places(op)[0] is common:
            found.append(op)
            continue
        after = [c for tensor in op.outputs for c in tensor.consumers()]
        for other in (*after, *private.control_outputs(op)):
            if other not in seen and any(
                place is common for place in _places(other)
            ):
                seen.add(other)
                todo.append(other)
    return found


def _entered_by(
    write: tf.Operation, variable: tf.Operation, common: Any
) -> list[tf.Operation]:
    """The op in `common` by which the variable reaches `write`."""
    for tensor in write.inputs:
        op = tensor.op
        if variable_behind(tensor) is not variable:
            continue
        while op.type in _PASS_ON and _places(op)[0] is not common:
            op = op.inputs[0].op
        if op.type in _PASS_ON:
            return [op]
    return []


def _add(
    edges: dict[tuple[tf.Operation, tf.Operation], None],
    before: dict[tf.Operation, list[tf.Operation]],
) -> int:
    """Adds edges; an edge that would close a circle of edges is left out."""
    extra: dict[tf.Operation, list[tf.Operation]] = {}
    for read, write in edges:
        extra.setdefault(write, []).append(read)
    if _has_circle({op: b + extra.get(op, []) for op, b in before.items()}):
        extra = {}
        for read, write in edges:
            if not _reaches(before, read, write):
                before[write].append(read)
                extra.setdefault(write, []).append(read)
    for write, reads in extra.items():
        private.add_control_inputs(write, reads)
    return sum(map(len, extra.values()))


def _has_circle(
    before: dict[tf.Operation, list[tf.Operation]],
) -> bool:
    waits = dict.fromkeys(before, 0)
    after: dict[tf.Operation, list[tf.Operation]] = {}
    for op, needs in before.items():
        waits[op] = len(needs)
        for need in needs:
            after.setdefault(need, []).append(op)
    free = [op for op, count in waits.items() if count == 0]
    done = 0
    while free:
        done += 1
        for op in after.get(free.pop(), ()):
            waits[op] -= 1
            if waits[op] == 0:
                free.append(op)
    return done < len(before)


def _reaches(
    before: dict[tf.Operation, list[tf.Operation]],
    op: tf.Operation,
    target: tf.Operation,
) -> bool:
    """Whether `op` depends on `target`."""
    seen, todo = {op}, [op]
    while todo:
        for need in before[todo.pop()]:
            if need is target:
                return True
            if need not in seen:
                seen.add(need)
                todo.append(need)
    return False
