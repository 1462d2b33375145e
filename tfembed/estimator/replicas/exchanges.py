"""Collectives at the top of a step, as ordinary ops between its replicas.

Fetching one replica's output so runs what that needs of all replicas, and no
replica waits for another in the middle of a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfembed import errors
from tfembed.estimator.replicas import private

# The ops of each replica, by replica 0's.
Copies = list[dict[tf.Operation, tf.Operation]]


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
