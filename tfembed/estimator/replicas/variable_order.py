"""Orders the reads and writes of variables in a TensorFlow 1 step.

A graph does not define whether an op that reads a variable runs before or
after an op that assigns it, if neither depends on the other. A TPU's program
does: such a read sees the value from before the step.
`order_reads_before_writes` makes a graph do the same, by control edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.estimator.private import control_flow

# Op types that only read the variable of a handle.
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
# Op types that take a batch, or raise OutOfRangeError.
_TAKES_INPUT = ("IteratorGetNext", "QueueDequeue")
# Op types that certainly write. Others with a handle input, for instance
# function calls, may follow a read that hooks fetch without a batch.
_WRITES = (
    "Apply",
    "Assign",
    "ResourceApply",
    "ResourceScatter",
    "ResourceSparseApply",
    "Scatter",
    "SparseApply",
)
# Op types that pass on a handle or a reference.
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
# Op types whose output may share the memory of their input.
_ALIASES = _PASS_ON | {"ExpandDims", "Reshape", "Squeeze", "StopGradient"}
# Op types that run outside the loop or branch in which they are created.
_GATES_OF_LOOPS = frozenset({"Enter", "Exit", "RefEnter", "RefExit"})
_GATES_OF_BRANCHES = frozenset({"RefSwitch", "Switch"})
_WAYS_OUT = frozenset({"Exit", "Merge", "RefExit", "RefMerge"})


def is_read(op: tf.Operation) -> bool:
    """Whether an op with a variable's handle as input does not write it."""
    return op.type in _READS or (
        op.type.startswith("Tfembed>") and "Lookup" in op.type
    )


def variable_behind(tensor: tf.Tensor) -> tf.Operation | None:
    """Returns the op of a handle's or reference's variable, or None."""
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
    """Returns all ops that run when `outputs` are fetched, unordered."""
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

    Considers the ops that `outputs` need. A read that does not depend on a
    write of its variable, through data or control edges, is ordered before
    that write. No session may have run the ops yet.

    Args:
      outputs: tensors and operations of one graph.

    Returns:
      The number of edges added; a second call adds none.
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
    """Adds control edges from input batches to writes of variables.

    A step whose input has ended then leaves all variables unchanged, including
    the global step and other variables that do not depend on a batch.

    Args:
      outputs: tensors and operations of a graph that no session has run.
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
        control_flow.outside_of_contexts(takes[0].graph),
        tf.device(takes[0].device or None),
        tf.control_dependencies(takes),
    ):
        all_there = tf.no_op("input_is_there")
    for write in writes:
        control_flow.add_control_inputs(write, [all_there])


def _is_signal(op: tf.Operation) -> bool:
    """Whether an op waits for an element of a queue, but does not use it."""
    return op.type.startswith("QueueDequeue") and not any(
        tensor.consumers() for tensor in op.outputs
    )


def _is_at_top(op: tf.Operation) -> bool:
    """Whether an op is outside all loops, branches and TPU programs.

    The path of a handle to the op shows this, for copies as for the ops that
    they copy.
    """
    if control_flow.frames_around(op) or "_tpu_replicate" in op.node_def.attr:
        return False
    for tensor in op.inputs:
        if tensor.dtype != tf.resource and not control_flow.is_ref(tensor):
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
    """The reads and writes of each variable."""

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
                elif control_flow.is_ref(tensor):
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
        # The output of the read may share the variable's memory: the ops that
        # use it are the real reads.
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
    return (
        op.type == "Identity" and len(op.inputs) == 1
    ) and control_flow.is_ref(op.inputs[0])


def _takes_references(op: tf.Operation, tensor: tf.Tensor) -> bool:
    """Whether the op's signature takes a reference, not a value."""
    definition = control_flow.op_def(op.type)
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
    """Returns the predecessors of each op, without back edges of loops.

    Instead, a loop's exit depends on all ops of a further iteration.
    """
    again: dict[Any, list[tf.Operation]] = {}
    for op in ops:
        if op.type in _NEXT:
            again.setdefault(control_flow.frames_around(op)[0], []).append(op)
    needs = {}
    for op in ops:
        before = [tensor.op for tensor in op.inputs]
        before.extend(op.control_inputs)
        needs[op] = [b for b in before if b.type not in _NEXT]
        if op.type in ("Exit", "RefExit"):
            needs[op].extend(again.get(control_flow.frames_around(op)[0], ()))
    return needs


_NEXT = frozenset({"NextIteration", "RefNextIteration"})


def _in_order(
    needs: dict[tf.Operation, list[tf.Operation]],
) -> list[tf.Operation]:
    """Sorts ops topologically."""
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
    """Returns, as a bit set per op, the writes that it depends on or is."""
    behind: dict[tf.Operation, int] = {}
    for op in _in_order(needs):
        found = bits.get(op, 0)
        for before in needs[op]:
            found |= behind[before]
        behind[op] = found
    return behind


def _places(op: tf.Operation) -> list[Any]:
    """Returns the loops and branches around an op, the innermost first.

    The last one is None, the graph itself.
    """
    frames = control_flow.frames_around(op)
    if frames:
        is_loop = frames[0].IsWhileContext()
        gates = _GATES_OF_LOOPS if is_loop else _GATES_OF_BRANCHES
        frames = frames[op.type in gates :]
    return [*frames, None]


def _edges(
    read: tf.Operation, write: tf.Operation, variable: tf.Operation
) -> list[tuple[tf.Operation, tf.Operation]]:
    """Returns control edges that order `read` first, across loops of both."""
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
    """Returns ops in `common` that run once the loops of `read` have ended."""
    found, seen, todo = [], {read}, [read]
    while todo:
        op = todo.pop()
        if op.type in _WAYS_OUT and _places(op)[0] is common:
            found.append(op)
            continue
        after = [c for tensor in op.outputs for c in tensor.consumers()]
        for other in (*after, *control_flow.control_outputs(op)):
            if other not in seen and any(
                place is common for place in _places(other)
            ):
                seen.add(other)
                todo.append(other)
    return found


def _entered_by(
    write: tf.Operation, variable: tf.Operation, common: Any
) -> list[tf.Operation]:
    """Returns the op in `common` through which the variable reaches `write`."""
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
    """Adds edges, except those that would close a cycle."""
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
        control_flow.add_control_inputs(write, reads)
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
