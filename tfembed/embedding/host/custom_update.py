"""Updates by functions that users write: a CustomOptimizer's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.embedding.host.tables import HostTable
from tfembed.tables import HashTable

__all__ = ["finite_sums", "update_rows"]


def finite_sums(
    ids: tf.Tensor, sums: tf.Tensor, nonfinite: str, table: str
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """What an update may use of summed gradients.

    Args:
      ids: distinct, [n].
      sums: [n, dim].
      nonfinite: "skip", "refuse" or "allow".
      table: what errors call the table.

    Returns:
      The ids and sums to use, and int64 [] the number of those with a NaN or an
      infinity.

    Raises:
      tf.errors.InvalidArgumentError: there are such and nonfinite="refuse"; when
        it runs.
    """
    is_finite = tf.reduce_all(tf.math.is_finite(sums), axis=1)
    count = tf.math.count_nonzero(tf.logical_not(is_finite), dtype=tf.int64)
    if nonfinite == "allow":
        return ids, sums, count
    if nonfinite == "refuse":
        check = tf.debugging.assert_equal(
            count,
            tf.constant(0, tf.int64),
            f"The summed gradient of an id of table {table!r} has a NaN or an "
            "infinity; nothing was changed",
        )
        with tf.control_dependencies([] if check is None else [check]):
            return tf.identity(ids), tf.identity(sums), count
    return (
        tf.boolean_mask(ids, is_finite),
        tf.boolean_mask(sums, is_finite),
        count,
    )


def update_rows(
    table: HostTable,
    optimizer: optimizers.CustomOptimizer,
    ids: tf.Tensor,
    sums: tf.Tensor,
    learning_rate: tf.Tensor,
) -> None:
    """Applies the optimizer's function to the rows of distinct ids.

    Args:
      table: whose rows they are.
      optimizer: its own.
      ids: distinct, [n].
      sums: [n, dim].
      learning_rate: of this step.

    Raises:
      tfembed.errors.ArgumentError: the function returns something else than a
        row and its slots.
    """
    if isinstance(table.parameters, HashTable):
        rows = table.parameters.lookup_trained(ids)
        widths = [table.parameters.dim, *table.parameters.slot_widths]
        moved = _move(
            optimizer, tf.split(rows, widths, axis=1), sums, learning_rate
        )
        table.parameters.write_trained(ids, tf.concat(moved, 1), add=False)
        return
    variables = [table.parameters, *table.slots.values()]
    parts = [variable.sparse_read(ids) for variable in variables]
    moved = _move(optimizer, parts, sums, learning_rate)
    for variable, new in zip(variables, moved, strict=True):
        variable.scatter_update(tf.IndexedSlices(new, ids))


def _move(
    optimizer: optimizers.CustomOptimizer,
    parts: Sequence[tf.Tensor],
    sums: tf.Tensor,
    learning_rate: tf.Tensor,
) -> list[tf.Tensor]:
    """Rows and slots, each [n, dim], after the function."""
    hyperparameters = tuple(
        tf.cast(value() if callable(value) else value, tf.float32)
        for value in optimizer.hyperparameters or ()
    )

    def move_one(row: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        gradient, value, *slots = row
        moved = optimizer.custom_computation(
            gradient, value, tuple(slots), learning_rate, hyperparameters
        )
        return _checked(tf.nest.flatten(moved), value, parts)

    return list(tf.vectorized_map(move_one, (sums, *parts)))


def _checked(
    moved: list[Any], value: tf.Tensor, parts: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, ...]:
    names = f"a row and {len(parts) - 1} slots, each of shape {value.shape}"
    if len(moved) != len(parts):
        raise errors.ArgumentError(
            f"`custom_computation` must return {names}; got {len(moved)} "
            "values."
        )
    tensors = tuple(tf.convert_to_tensor(one, tf.float32) for one in moved)
    for one in tensors:
        if not one.shape.is_compatible_with(value.shape):
            raise errors.ArgumentError(
                f"`custom_computation` must return {names}; got one of shape "
                f"{one.shape}."
            )
    return tensors
