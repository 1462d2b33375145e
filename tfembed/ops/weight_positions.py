"""Weights stand where the ids stand that they belong to."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.ops.private import traced_for_xla

__all__ = ["at_positions_of", "weights_like"]


def at_positions_of(ids: Any, weights: Any, path: str) -> Any:
    """The weights, once it is known that they have the positions of `ids`.

    Nearly free where they were made of the ids, by `ids.with_values`. Weights
    of another number than the ids pass, if there are some: whoever pairs them
    tells, but takes none for ones. In a program for XLA, which cannot raise,
    they pass too.

    Args:
      ids: a SparseTensor, or a RaggedTensor of rank 2.
      weights: weights of the same type.
      path: the feature's name in errors.

    Raises:
      tf.errors.InvalidArgumentError: when it runs: other indices or row splits,
        or no weights for ids that there are.
    """
    if traced_for_xla():
        return weights
    weights = _given(ids, weights, path)
    own, others = _places(weights), _places(ids)
    if own is others:
        return weights
    # Compared up to the shorter one, so that the number may differ.
    least = tf.minimum(tf.shape(own)[0], tf.shape(others)[0])
    # Not ==, which compares objects in a graph of TensorFlow 1.
    is_same = tf.not_equal(
        tf.size(weights.values), tf.size(ids.values)
    ) | tf.reduce_all(
        tf.equal(
            tf.cast(own, tf.int64)[:least], tf.cast(others, tf.int64)[:least]
        )
    )
    check = tf.debugging.Assert(
        is_same,
        [
            f"The weights of {path} must have the indices, or row splits, of its "
            "ids. Make them by ids.with_values. Those of the weights, the ids:",
            own,
            others,
        ],
    )
    return _after(check, weights)


def weights_like(ids: Any, weights: Any, name: str) -> Any:
    """The weights as `ids.with_values`, once it is known that they stand there.

    Nearly free where they were made so. Dense shapes, and the dtypes of row
    splits, may differ.

    Args:
      ids: a SparseTensor, or a RaggedTensor of one ragged dimension.
      weights: weights of the same type.
      name: the table's name in errors.

    Raises:
      tfembed.errors.ArgumentError: weights of another rank.
      tf.errors.InvalidArgumentError: when it runs: another number than ids,
        other indices or row splits.
    """
    ranks = ids.shape.rank, weights.shape.rank
    is_nested = not isinstance(weights.values, tf.Tensor)
    if is_nested or (None not in ranks and ranks[0] != ranks[1]):
        raise errors.ArgumentError(
            f"The weights for '{name}' must have the shape of the ids, "
            f"{ids.shape}; got {weights.shape}. Make them by ids.with_values."
        )
    is_same = tf.equal(tf.size(weights.values), tf.size(ids.values))
    own, others = _places(weights), _places(ids)
    if own is not others:
        is_same &= tf.reduce_all(tf.equal(tf.shape(own), tf.shape(others)))
        # Both get one shape, so that they can be compared if they have two.
        own, others = (
            tf.reshape(tf.cast(x, tf.int64), [-1]) for x in (own, others)
        )
        least = tf.minimum(tf.size(own), tf.size(others))
        is_same &= tf.reduce_all(tf.equal(own[:least], others[:least]))
    elif _as_many(ids, weights):
        return weights
    check = tf.debugging.Assert(
        is_same,
        [
            f"The weights for '{name}' must be as many as its ids, and have "
            "their indices, or row splits. Make them by ids.with_values. Those "
            "of the weights, the ids:",
            own,
            others,
        ],
    )
    with tf.control_dependencies([] if check is None else [check]):
        return ids.with_values(tf.identity(weights.values))


def _as_many(ids: Any, weights: Any) -> bool:
    """Whether it is known now that there is a weight for each id."""
    number = weights.values.shape.num_elements()
    return number is not None and number == ids.values.shape.num_elements()


def _given(ids: Any, weights: Any, path: str) -> Any:
    """The weights, once it is known that some are there, if there are ids."""
    n = weights.values.shape.num_elements()
    if n is not None and (n > 0 or n == ids.values.shape.num_elements()):
        return weights
    is_given = (tf.size(weights.values) > 0) | tf.equal(tf.size(ids.values), 0)
    check = tf.debugging.Assert(
        is_given,
        [
            f"There are no weights of {path} for its ids. Give each id one, or "
            "None for all. Ids:",
            tf.size(ids.values),
        ],
    )
    return _after(check, weights)


def _after(check: Any, weights: Any) -> Any:
    with tf.control_dependencies([] if check is None else [check]):
        return weights.with_values(tf.identity(weights.values))


def _places(value: Any) -> tf.Tensor:
    if isinstance(value, tf.SparseTensor):
        return value.indices
    return value.row_splits
