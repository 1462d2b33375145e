"""The rows of several ids combined into one, by TensorFlow's ops.

With the rows e of a bag of ids and their weights w:

    sum: S = sum(w e)    mean: S / sum(w)    sqrtn: S / sqrt(sum(w ** 2))

`grouped_lookup` does the same in its kernel, and `embedding/xla/entries.py` in
XLA programs of fixed shapes. `combine` is for rows that were looked up already.

The weights must have the positions of their ids (`at_positions_of`,
`weights_like`); `with_weight_gradient` gives them gradients.
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

__all__ = ["at_positions_of", "combine", "weights_like", "with_weight_gradient"]


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
      tf.errors.InvalidArgumentError: when it runs: another number of weights
        than of rows.
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

    # Checks the number of weights: a single one would be broadcast to all rows.
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
    """Returns the weights after a check that they have the positions of `ids`.

    The check is nearly free for weights made by `ids.with_values`. A wrong
    number of weights passes unless it is 0: the ops refuse it, but read no
    weights as ones. In XLA programs, which cannot raise, all weights pass.

    Args:
      ids: a SparseTensor, or a RaggedTensor of rank 2.
      weights: weights of the same type.
      path: the feature's name in errors.

    Raises:
      tf.errors.InvalidArgumentError: when it runs: other indices or row splits,
        or ids without weights.
    """
    if traced_for_xla():
        return weights
    weights = _given(ids, weights, path)
    own, others = _places(weights), _places(ids)
    if own is others:
        return weights
    # Compared up to the shorter length, since the number may differ.
    least = tf.minimum(tf.shape(own)[0], tf.shape(others)[0])
    # Not ==, which compares identity in a graph of TensorFlow 1.
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
    """Returns the weights in the structure of `ids`; checks their positions.

    The check is nearly free for weights made by `ids.with_values`. Dense
    shapes, and the dtypes of row splits, may differ.

    Args:
      ids: a SparseTensor, or a RaggedTensor of one ragged dimension.
      weights: weights of the same type.
      name: the table's name in errors.

    Raises:
      tfembed.errors.ArgumentError: weights of another rank.
      tf.errors.InvalidArgumentError: when it runs: another number than of ids,
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
        # Both get one shape, so that they can be compared.
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
    """Adds a gradient with respect to the weights of `ids` to `activations`.

    The gradient looks up the rows of all ids one by one, which must not run
    unless a tape differentiates with respect to the weights. So it belongs to
    an added term of zeros that depends only on the weights, and not to the
    activations, whose gradient the tables need too.

    Args:
      activations: float32 [B, dim], the op's result for `ids`.
      ids: sparse or ragged ids with weights.
      samples: int64 [n], the sample of each id.
      table: a table as `grouped_lookup` takes it.
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

    # The rows at the time of the lookup, if known; for a function inside of a
    # tape, the rows at the time of the backward pass.
    rows = rows_now(ids.ids) if is_watched else None

    # A gradient that leaves a tf.cond may use only tensors of the branch. So
    # all that it needs is made here and passed as an argument.
    @tf.custom_gradient
    def zeros(
        weights: tf.Tensor,
        keys: tf.Tensor,
        samples: tf.Tensor,
        batch_size: tf.Tensor,
    ) -> tuple[tf.Tensor, Callable[..., Any]]:
        def gradient(upstream: tf.Tensor) -> tuple[Any, ...]:
            of_ids = rows_now(keys) if rows is None else rows
            # A tape in a loop can watch this tensor.
            own = tf.identity(weights)
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
    """Says whether, by the static shapes, each id has a weight."""
    number = weights.values.shape.num_elements()
    return number is not None and number == ids.values.shape.num_elements()


def _given(ids: Any, weights: Any, path: str) -> Any:
    """Returns the weights after a check that ids have weights."""
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
