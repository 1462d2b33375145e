"""One update of all tables of a step: `update_tables` or `update_rows`.

The first is for fused rules, the second for an optimizer's own update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.foreign_optimizers.rules import RowRule, TableRows
from tfembed.foreign_optimizers.table_gradients import (
    TableGradient,
    insert_missing,
    sum_by_key,
    usable_sums,
)
from tfembed.ops.private import converted
from tfembed.tables.hash_table import KeyGradient, update_by_key

__all__ = ["forget_evicted", "note_updates", "update_rows", "update_tables"]


def update_tables(
    gradients: Sequence[tuple[tf.IndexedSlices, Variable]],
    *,
    rule: str,
    learning_rate: tf.Tensor,
    nonfinite: str,
) -> tf.Tensor:
    """Applies `rule` once to each distinct key of each variable.

    Gradients of one key, in one entry or several, are summed first. A gradient
    or a batch that is refused leaves every table as it was, on any device.

    Args:
      gradients: the gradients by key; a variable may come several times.
      rule: the text of the update rule, whose slots the tables have.
      learning_rate: scalar.
      nonfinite: "skip", "refuse" or "allow".

    Returns:
      int64 []: the count of keys whose sum is not finite; 0 with "allow", which
      does not check.
    """
    checks: list[tf.Operation] = []
    inserted: list[tf.Operation] = []
    if any(params.table.is_drawn for _, params in gradients):
        # The update refuses before it changes anything: so do rows that are
        # inserted before it.
        sums = sum_by_key(gradients)
        checks = [
            check
            for slices, params in sums
            for check in params.table.check_step(
                slices.indices, slices.values, nonfinite
            )
        ]
        with tf.control_dependencies(checks):
            inserted = insert_missing(
                [
                    (usable_sums(slices, nonfinite, params.name)[0], params)
                    for slices, params in sums
                    if params.table.is_drawn
                ]
            )
    with tf.control_dependencies([*checks, *inserted]):
        return update_by_key(
            [_by_key(slices, params) for slices, params in gradients],
            rule=rule,
            learning_rate=learning_rate,
            nonfinite=nonfinite,
        )


def _by_key(slices: tf.IndexedSlices, params: Variable) -> KeyGradient:
    keys = tf.reshape(slices.indices, [-1])
    if keys.dtype != params.key_dtype:  # As a partitioner gets them in lookups.
        keys = tf.cast(keys, params.key_dtype)
    values = tf.reshape(slices.values, [-1, params.dim])
    return params.table, keys, tf.cast(values, tf.float32)


TableGradients = Sequence[tuple[tf.IndexedSlices, Variable]]


def forget_evicted(gradients: TableGradients) -> None:
    """Removes keys that a leader evicted from its followers, before a step.

    Args:
      gradients: the gradients by key; a variable may come several times.
    """
    followed = [pair for pair in gradients if pair[1].table.is_followed]
    for params, keys in _keys_by_variable(followed) if followed else ():
        params.table.followers.forget_evicted(keys)


def note_updates(gradients: TableGradients) -> None:
    """Passes the keys that a step updated to each variable's restrict policy.

    Keys that were not admitted are left out. Each policy is called once. A step
    is counted for each table, whose rows then expire if they are due.

    Args:
      gradients: the gradients by key; a variable may come several times.
    """
    restricted = [p for p in gradients if p[1].restrict_policy is not None]
    for params, keys in _keys_by_variable(restricted) if restricted else ():
        if params.table.admission is not None:
            keys = tf.boolean_mask(keys, params.table.contains(keys))
        policy: Any = params.restrict_policy
        converted(policy.apply_update)(keys)
    for params in {id(params): params for _, params in gradients}.values():
        params.table.note_training_step()


def _keys_by_variable(
    gradients: TableGradients,
) -> list[tuple[Variable, tf.Tensor]]:
    """Lists each variable once, with the keys [n] of all its gradients."""
    variables: dict[int, Variable] = {}
    parts: dict[int, list[tf.Tensor]] = {}
    for slices, params in gradients:
        variables[id(params)] = params
        # int32 keys are passed as int64.
        keys = tf.cast(tf.reshape(slices.indices, [-1]), params.key_dtype)
        parts.setdefault(id(params), []).append(keys)
    return [
        (params, tf.concat(parts[params_id], 0))
        for params_id, params in variables.items()
    ]


def update_rows(
    gradients: Sequence[TableGradient],
    *,
    rule: RowRule,
    learning_rate: tf.Tensor | None,
    nonfinite: str,
    add: bool,
) -> tf.Tensor:
    """Reads the rows of each distinct key, updates them by `rule`, writes them.

    Args:
      gradients: the gradients by key; a variable may come several times.
      rule: the row rule whose slots the tables have.
      learning_rate: scalar; None: the rule's learning rate.
      nonfinite: "skip", "refuse" or "allow".
      add: whether changes are added to the current rows and slots instead of
        overwriting them; for a `Variable(bp_v2=True)` they always are.

    Returns:
      int64 []: the count of keys whose sum is not finite; 0 with "allow", which
      does not check.

    Raises:
      tf.errors.InvalidArgumentError: a non-finite sum, with "refuse", or more
        keys than a table may hold. No table is changed.
    """
    sums = sum_by_key(gradients)
    checks: list[Any] = [
        check
        for slices, params in sums
        for check in params.table.check_room(slices.indices)
    ]
    usable = [usable_sums(s, nonfinite, params.name) for s, params in sums]
    count = tf.zeros([], tf.int64)
    if nonfinite != "allow":
        count = tf.add_n([found for _, found in usable])
    sums = [
        (s, params) for (s, _), (_, params) in zip(usable, sums, strict=True)
    ]
    checks += [slices.values for slices, _ in sums]
    with tf.control_dependencies(checks):
        count = tf.identity(count)  # Ops that use it wait for the checks too.
        inserted = insert_missing(sums)
    with tf.control_dependencies([*checks, *inserted]):
        tables = [_read(slices, params, rule) for slices, params in sums]
        moved = rule.update(tables, learning_rate)
    for before, after, (slices, params) in zip(
        tables, moved, sums, strict=True
    ):
        rows = _full_rows(after)
        adds = add or params.bp_v2
        if adds:
            rows -= _full_rows(before)
        params.table.write_trained(slices.indices, rows, add=adds)
    return count


def _read(
    slices: tf.IndexedSlices, params: Variable, rule: RowRule
) -> TableRows:
    full_rows = params.table.lookup_trained(slices.indices)
    values, *slots = tf.split(full_rows, 1 + len(rule.slot_names), axis=1)
    return TableRows(params.name, values, tuple(slots), slices.values)


def _full_rows(table: TableRows) -> tf.Tensor:
    return tf.concat([table.values, *table.slots], axis=1)
