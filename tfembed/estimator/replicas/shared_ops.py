"""Which ops of a step, and which variables, all replicas can share.

Behind a sum over all replicas every replica computes the same. What only depends
on such sums, on constants and on variables that are the same in all replicas is
done once; as a rule that is a whole optimizer, its slots and the global step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from tfembed.estimator.replicas import private
from tfembed.estimator.replicas.variable_order import is_read, variable_behind

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
      ops: of a step, each behind those that it needs.
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
