"""The combiners of layers: several ids' rows into one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import errors, ops

__all__ = ["NAMES", "combine_bags", "combine_dense", "reduce_pooling"]

# The combiners that define a value for zero rows.
_BAGS = ("mean", "sqrtn", "sum")
# combiner: tensor, axes -> tensor without them.
_DENSE: dict[str, Callable[..., tf.Tensor]] = {
    "max": tf.reduce_max,
    "mean": tf.reduce_mean,
    "min": tf.reduce_min,
    "prod": tf.reduce_prod,
    "std": tf.math.reduce_std,
    "sum": tf.reduce_sum,
}
# They divide by the number of rows, which may be 0.
_DIVIDING = ("mean", "sqrtn", "std")
NAMES = tuple(sorted({*_BAGS, *_DENSE}))


def combine_dense(rows: tf.Tensor, combiner: Any) -> tf.Tensor:
    """Combines rows [batch, ..., dim] to [batch, dim], or [n, dim] to [dim].

    The "mean", "sqrtn", "std" and "sum" of no rows are zeros.

    Args:
      rows: rows of known rank.
      combiner: one of `NAMES`, or a function of (rows, axes).

    Raises:
      tfembed.errors.ArgumentError: rows of rank 1, or of unknown rank.
    """
    rank = rows.shape.rank
    if rank is None or rank < 2:
        raise errors.ArgumentError(
            "Ids to combine must have a known rank of at least 1; rows have "
            f"shape {rows.shape}."
        )
    axes = list(range(1, rank - 1)) or [0]
    if callable(combiner):
        return combiner(rows, axes)
    if combiner not in _DIVIDING:
        return _DENSE[combiner](rows, axes)
    count = tf.math.reduce_prod(tf.gather(tf.shape(rows), axes))
    if combiner == "sqrtn":
        root = tf.sqrt(tf.cast(count, rows.dtype))
        return tf.math.divide_no_nan(tf.reduce_sum(rows, axes), root)
    combined = _DENSE[combiner](rows, axes)
    return tf.where(count > 0, combined, tf.zeros_like(combined))


def reduce_pooling(x: tf.Tensor, combiner: Any = "sum") -> tf.Tensor:
    """Calls `combine_dense`; TFRA's name for it."""
    return combine_dense(x, combiner)


def combine_bags(
    rows: tf.Tensor, bags: tf.Tensor, num_bags: tf.Tensor, combiner: Any
) -> tf.Tensor:
    """Combines rows [n, dim] by the bag number of each into [bags, dim].

    Raises:
      tfembed.errors.UnsupportedError: a combiner that has no value for a bag
        without ids.
    """
    if callable(combiner) or combiner not in _BAGS:
        raise errors.UnsupportedError(
            "Bags of any number of ids are combined by one of "
            f"{sorted(_BAGS)}; got {combiner!r}."
        )
    return ops.combine(rows, None, bags, num_bags, combiner)
