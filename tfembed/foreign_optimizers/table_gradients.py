"""Sums gradients of tables by key; clips and unscales them as Keras does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfembed.ops.gradients import (
    refuse_nonfinite,
    shrink_factor,
    with_finite_rows,
)

__all__ = [
    "GradientClipping",
    "TableGradient",
    "finite_rows",
    "insert_missing",
    "sum_by_key",
    "usable_sums",
]

# The gradient of a table by key, and the table's `Variable`.
TableGradient: TypeAlias = tuple[tf.IndexedSlices, Any]
DenseGradient: TypeAlias = tuple[Any, Any]


def sum_by_key(gradients: Sequence[TableGradient]) -> list[TableGradient]:
    """Sums gradients to one entry for each variable, with distinct keys.

    Args:
      gradients: the gradients by key; keys may repeat, and a variable may come
        several times.

    Returns:
      Per variable, in the order of first occurrence, indices [n] and values
      float32 [n, dim].
    """
    parts: dict[int, list[tf.IndexedSlices]] = {}
    variables: dict[int, Any] = {}
    for slices, params in gradients:
        variables[id(params)] = params
        parts.setdefault(id(params), []).append(slices)
    return [
        (_sum(parts[params_id], params), params)
        for params_id, params in variables.items()
    ]


def finite_rows(values: tf.Tensor) -> tf.Tensor:
    """Returns which rows [n, dim] have no NaN and no infinity, bool [n]."""
    return tf.reduce_all(tf.math.is_finite(values), axis=-1)


def usable_sums(
    slices: tf.IndexedSlices, nonfinite: str, table: str
) -> tuple[tf.IndexedSlices, tf.Tensor]:
    """Removes sums that are not finite, or raises an error.

    Args:
      slices: the sums of a table, by distinct key.
      nonfinite: "skip", "refuse", or "allow", which keeps all.
      table: the name of the table, for errors.

    Returns:
      The sums to use; and int64 [], the number of sums with a NaN or an
      infinity.

    Raises:
      tf.errors.InvalidArgumentError: at run time, some sum is not finite and
        nonfinite="refuse".
    """
    keys, values = slices.indices, slices.values
    is_finite = finite_rows(values)
    count = tf.math.count_nonzero(tf.logical_not(is_finite), dtype=tf.int64)
    if nonfinite == "skip":
        keep = tf.where(is_finite)[:, 0]
        keys, values = tf.gather(keys, keep), tf.gather(values, keep)
    elif nonfinite == "refuse":
        with tf.control_dependencies(refuse_nonfinite(values, table)):
            keys, values = tf.identity(keys), tf.identity(values)
    return tf.IndexedSlices(values, keys), count


def insert_missing(sums: Sequence[TableGradient]) -> list[tf.Operation]:
    """Calls `HashTable.insert_missing` with the keys of each variable's sums.

    Returns:
      The operations that must run before rows are read or updated.
    """
    inserted = [
        params.table.insert_missing(slices.indices) for slices, params in sums
    ]
    return [operation for operation in inserted if operation is not None]


def _sum(parts: list[tf.IndexedSlices], params: Any) -> tf.IndexedSlices:
    keys = tf.concat([tf.reshape(part.indices, [-1]) for part in parts], 0)
    if keys.dtype != params.key_dtype:
        keys = tf.cast(keys, params.key_dtype)
    rows = [tf.reshape(part.values, [-1, params.dim]) for part in parts]
    values = tf.concat([tf.cast(part, tf.float32) for part in rows], 0)
    distinct, positions = tf.unique(keys)
    sums = tf.math.unsorted_segment_sum(values, positions, tf.size(distinct))
    return tf.IndexedSlices(tf.ensure_shape(sums, [None, params.dim]), distinct)


@dataclasses.dataclass(frozen=True)
class GradientClipping:
    """The options that clip gradients, as Keras has them.

    Dense variables' gradients are clipped by their optimizer, except by the
    global norm, which covers them and all tables. A table's gradient counts as
    that of a dense variable with all rows: the sums of the distinct keys, and
    0 for other keys. Sums that are not finite do not count for a norm.

    Attributes:
      loss_scale: a number by which gradients are divided first.
      clipvalue: each element is clipped to [-clipvalue, clipvalue], before
        norms are taken.
      clipnorm: the maximum norm of each variable's gradient.
      global_clipnorm: the maximum norm of all gradients together.
    """

    loss_scale: float | None = None
    clipvalue: float | None = None
    clipnorm: float | None = None
    global_clipnorm: float | None = None

    @classmethod
    def of(cls, **options: float | None) -> GradientClipping | None:
        """Returns the clipping with these options; None if no option is set."""
        return cls(**options) if any(options.values()) else None

    def apply(
        self, sparse: Sequence[TableGradient], dense: Sequence[DenseGradient]
    ) -> tuple[list[TableGradient], list[DenseGradient]]:
        """Clips gradients of tables, by distinct key, and of variables."""
        sums = [(_times(s, self._unscale), v) for s, v in sum_by_key(sparse)]
        if self.clipvalue:
            sums = [(_clip_elements(s, self.clipvalue), v) for s, v in sums]
        if self.clipnorm:
            sums = [
                (_times(s, _shrink([_finite(s)], self.clipnorm)), v)
                for s, v in sums
            ]
        if not self.global_clipnorm:
            return sums, list(dense)
        all_gradients = [_finite(s) for s, _ in sums]
        if self.clipvalue:  # Before the norm, as for tables.
            dense = [(_clip_elements(g, self.clipvalue), v) for g, v in dense]
        all_gradients += [_times(g, self._unscale) for g, _ in dense]
        factor = _shrink(all_gradients, self.global_clipnorm)
        return (
            [(_times(s, factor), v) for s, v in sums],
            [(_times(g, factor), v) for g, v in dense],
        )

    @property
    def _unscale(self) -> float:
        return 1 / self.loss_scale if self.loss_scale else 1.0


def _clip_elements(gradient: Any, limit: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        kept = _clip_elements(gradient.values, limit)
        return tf.IndexedSlices(kept, gradient.indices, gradient.dense_shape)
    # NaNs and infinities stay: `nonfinite` decides about them.
    clipped = tf.clip_by_value(gradient, -limit, limit)
    return tf.where(tf.math.is_finite(gradient), clipped, gradient)


def _times(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            gradient.values * tf.cast(factor, gradient.values.dtype),
            gradient.indices,
            gradient.dense_shape,
        )
    return gradient * tf.cast(factor, gradient.dtype)


def _finite(slices: tf.IndexedSlices) -> tf.Tensor:
    return with_finite_rows(slices.values)


def _shrink(gradients: Sequence[Any], limit: float) -> tf.Tensor:
    """Returns the factor that scales a longer norm of gradients to `limit`."""
    return shrink_factor([getattr(g, "values", g) for g in gradients], limit)
