"""One step of an optimizer that is not fused, on all tables of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.foreign_optimizers.key_sums import (
    TableGradient,
    insert_missing,
    sum_by_key,
    usable_sums,
)
from tfembed.foreign_optimizers.row_rule import RowRule, TableRows, _overload

__all__ = ["check_no_admission", "update_rows"]


def update_rows(
    gradients: Sequence[TableGradient],
    *,
    rule: RowRule,
    learning_rate: tf.Tensor | None,
    nonfinite: str,
    add: bool,
) -> tf.Tensor:
    """Has `rule` move the rows of each distinct key, and writes them back.

    Args:
      gradients: the gradients by key; a variable may come several times.
      rule: what the tables' slots are laid out for.
      learning_rate: scalar; None: the rule's own.
      nonfinite: "skip", "refuse" or "allow".
      add: whether what was moved is added to rows and slots as they then are,
        rather than written over them; where `Variable(bp_v2=True)` it is.

    Returns:
      int64 []: the keys whose sum was not finite; 0 with "allow", which looks at
      none.

    Raises:
      tf.errors.InvalidArgumentError: such a key, with "refuse", or more keys
        than a table may hold. No table is changed.
    """
    sums = sum_by_key(gradients)
    checks: list[Any] = [
        check
        for slices, params in sums
        for check in params.table.check_room(slices.indices)
        if check is not None
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
        count = tf.identity(count)  # Its users wait for the checks too.
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


def check_no_admission(
    params: Variable, optimizer: str, options: Sequence[str] = ()
) -> None:
    """Refuses a table that admits keys by a policy: these updates insert all.

    Args:
      params: the table.
      optimizer: the name of the optimizer.
      options: those without which its update would be a fused one.

    Raises:
      tfembed.errors.UnsupportedError: it does.
    """
    if params.table.admission is not None:
        given = f" with {', '.join(options)}" if options else ""
        raise errors.UnsupportedError(
            f"'{params.name}' admits keys by a policy, which '{optimizer}'{given} "
            "does not ask: only fused updates do. Train it by SGD, Adagrad, Adam "
            "or Ftrl without momentum, weight_decay, amsgrad and l2_shrinkage, or "
            "leave `admission` out."
        )


def _read(
    slices: tf.IndexedSlices, params: Variable, rule: RowRule
) -> TableRows:
    full_rows = params.table.lookup_trained(slices.indices)
    values, *slots = tf.split(full_rows, 1 + len(rule.slot_names), axis=1)
    return TableRows(params.name, values, tuple(slots), slices.values)


def _full_rows(table: TableRows) -> tf.Tensor:
    return tf.concat([table.values, *table.slots], axis=1)


for _operator in (
    *("__neg__", "__abs__", "__getitem__", "__add__", "__radd__", "__sub__"),
    *("__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
    *("__pow__", "__rpow__", "__lt__", "__le__", "__gt__", "__ge__"),
):
    _overload(_operator)
