"""Gradients of a lookup by the host's op with respect to the weights of ids.

The op's own are of tables alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed.embedding.features.pooling import combine
from tfembed.embedding.host.row_feature import places_of
from tfembed.ops import FeatureIds
from tfembed.ops.private import tape_watches

__all__ = ["with_weight_gradient"]


def with_weight_gradient(
    activations: tf.Tensor, ids: FeatureIds, combiner: str, table: Any
) -> tf.Tensor:
    """`activations`, which a tape differentiates for the weights of `ids` too.

    That takes the rows of all ids, one by one: nothing of it is done where no
    tape asks for weights. So it hangs on a term of zeros that depends on weights
    alone, and not on the activations, whose gradient tables want too.

    Args:
      activations: [B, dim], which the op made of `ids`.
      ids: sparse or ragged, with a weight each.
      combiner: "sum", "mean" or "sqrtn".
      table: the variable.
    """
    is_watched = tape_watches(ids.weights)
    if tf.executing_eagerly() and not is_watched:
        return activations

    def rows_now() -> tf.Tensor:
        return tf.stop_gradient(tf.gather(table, ids.ids))

    # As they are now, where it is known; a tape around a function, of which this
    # is traced before, finds those of its backward pass.
    rows = rows_now() if is_watched else None
    samples, _ = places_of(ids)

    @tf.custom_gradient
    def zeros(weights: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            of_ids = rows_now() if rows is None else rows
            with tf.GradientTape() as tape:
                tape.watch(weights)
                combined = combine(
                    of_ids, weights, samples, ids.batch_size, combiner
                )
            return tf.raw_ops.PreventGradient(
                input=tape.gradient(combined, weights, upstream),
                message="Weights of tfembed's lookups have no second-order "
                "gradients.",
            )

        return tf.zeros(tf.shape(activations)), gradient

    return activations + zeros(ids.weights)
