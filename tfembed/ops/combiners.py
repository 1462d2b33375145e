"""The rows of several ids combined into one, by TensorFlow's ops.

With the rows e of a bag of ids and their weights w:

    sum: S = sum(w e)    mean: S / sum(w)    sqrtn: S / sqrt(sum(w ** 2))

`grouped_lookup` does the same in its kernel, and `embedding/xla/entries.py` in
XLA programs of fixed shapes. `combine` is for rows that are at hand already.

The weights must stand where their ids stand (`at_positions_of`, `weights_like`),
and have gradients of their own (`with_weight_gradient`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.ops import private
from tfembed.ops.grouped import (
    FeatureIds,
    FeaturePlan,
    feature_ids,
    grouped_lookup,
)
from tfembed.ops.private import traced_for_xla

__all__ = [
    "at_positions_of",
    "combine",
    "weights_like",
    "with_weight_gradient",
]


def combine(
    rows: tf.Tensor,
    weights: tf.Tensor | None,
    bags: tf.Tensor,
    num_bags: tf.Tensor,
    combiner: str,
) -> tf.Tensor:
    """Combines rows [n, dim] into [num_bags, dim].

    Rows of float16 and bfloat16 are summed in float32; the result has the rows'
    dtype. A bag without rows, or whose divisor is 0, gives zeros.

    Args:
      rows: numbers; integers by "sum" only.
      weights: None, or numbers [n].
      bags: integers [n], each row's bag; rows of bags below 0 are left out.
      num_bags: a scalar.
      combiner: "sum", "mean" or "sqrtn".

    Raises:
      tfembed.errors.DtypeError: booleans or strings, or integers and another
        combiner.
      tf.errors.InvalidArgumentError: not as many weights as rows; when it runs.
    """
    dtype = rows.dtype
    if dtype in (tf.bool, tf.string):
        raise errors.DtypeError(
            f"Rows of {dtype.name} cannot be combined; look the ids up one by "
            "one with `embedding_lookup`."
        )
    if not dtype.is_floating and combiner != "sum":
        raise errors.DtypeError(
            f"Rows of {dtype.name} can be combined by 'sum' only; got combiner "
            f"'{combiner}'."
        )
    is_half = dtype in (tf.float16, tf.bfloat16)
    rows = tf.cast(rows, tf.float32) if is_half else rows

    def add_up(values: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(values, bags, num_bags)

    # As many weights as rows: one alone would be spread over all of them.
    column = tf.stack([tf.size(bags), 1])
    if weights is not None:
        weights = tf.reshape(tf.cast(weights, rows.dtype), column)
        rows *= weights
    total = add_up(rows)
    if combiner != "sum":
        if weights is None:
            weights = tf.ones(column, rows.dtype)
        divisor = add_up(weights**2 if combiner == "sqrtn" else weights)
        divisor = tf.sqrt(divisor) if combiner == "sqrtn" else divisor
        total = tf.math.divide_no_nan(total, divisor)
    return tf.cast(total, dtype)


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


def with_weight_gradient(
    activations: tf.Tensor,
    ids: FeatureIds,
    samples: tf.Tensor,
    table: Any,
    combine: Callable[..., tf.Tensor],
) -> tf.Tensor:
    """`activations`, which a tape differentiates for the weights of `ids` too.

    The gradient takes the rows of all ids, one by one: nothing of it is done
    where no tape asks for weights. So it hangs on a term of zeros that depends
    on weights alone, and not on the activations, whose gradient tables want
    too.

    Args:
      activations: float32 [B, dim], which the op made of `ids`.
      ids: sparse or ragged, with a weight each.
      samples: int64 [n], the sample of each id.
      table: what `grouped_lookup` takes for one.
      combine: (rows [n, dim], weights [n], samples, B) -> activations.
    """
    is_watched = private.tape_watches(ids.weights)
    if tf.executing_eagerly() and not is_watched:
        return activations
    handle = private.captured(getattr(table, "handle", table))

    def rows_now(keys: tf.Tensor) -> tf.Tensor:
        (rows,) = grouped_lookup(
            [private.outside_function(handle)],
            [activations.shape[-1]],
            [feature_ids(keys)],
            [FeaturePlan(table=0, combiner="sum", validate=False)],
        )
        return tf.stop_gradient(rows)

    # As they are now, where it is known; a tape around a function, of which this
    # is traced before, finds those of its backward pass.
    rows = rows_now(ids.ids) if is_watched else None

    # A gradient that leaves a tf.cond may use tensors of the branch alone. So all
    # that it needs is an argument, and made here.
    @tf.custom_gradient
    def zeros(
        weights: tf.Tensor,
        keys: tf.Tensor,
        samples: tf.Tensor,
        batch_size: tf.Tensor,
    ) -> tuple[tf.Tensor, Callable[..., Any]]:
        def gradient(upstream: tf.Tensor) -> tuple[Any, ...]:
            of_ids = rows_now(keys) if rows is None else rows
            own = tf.identity(weights)  # What a tape in a loop can watch.
            with tf.GradientTape() as tape:
                tape.watch(own)
                combined = combine(of_ids, own, samples, batch_size)
            of_weights = tf.raw_ops.PreventGradient(
                input=tape.gradient(combined, own, upstream),
                message="Weights of tfembed's lookups have no second-order "
                "gradients.",
            )
            return of_weights, None, None, None

        return tf.zeros(tf.shape(activations)), gradient

    arguments = ids.weights, ids.ids, samples, ids.batch_size
    return activations + zeros(*map(tf.identity, arguments))


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
