"""Gradients of GroupedLookup with respect to the weights of ids.

The op's own are of tables alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed.ops import private
from tfembed.ops.grouped import (
    FeatureIds,
    FeaturePlan,
    feature_ids,
    grouped_lookup,
)

__all__ = ["with_weight_gradient"]


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
