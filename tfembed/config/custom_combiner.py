"""Combiners that users write."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.optimizers.private import slots_of

__all__ = ["CustomCombiner", "as_combiner", "is_custom"]


@dataclasses.dataclass(frozen=True, eq=False)
class CustomCombiner:
    """How the rows of a sample's ids become one, as a function of tensors.

    As `tf.tpu.experimental.embedding.CustomCombiner`, which is accepted in its
    place. It is correct anywhere and slower than "sum", "mean" and "sqrtn", which
    are fused. Samples without ids are zeros and are not combined. Weights of
    single ids are not allowed. Sequence features and dense features are not
    combined at all.

    Attributes:
      combiner_computation: called as fn(valency, vectors), or with num_weights
        as fn(valency, vectors, weights), for one sample: valency int32 [], the
        number of its ids; vectors float32 [max_valency, dim], their rows in the
        order of the input, then zeros; weights float32 [num_weights]. Returns
        float32 [dim]. It is vectorized over the batch, and differentiated.
      max_valency: at least 1; the ids of a sample behind so many are dropped.
      num_weights: trained numbers that all samples share; 0: none.
      initializer: the initializer of the weights, called as initializer(shape,
        dtype=...).
      combiner_weights_learning_rate: a number, or a function without arguments
        that is called in each step: w -= rate * g, g summed over the batch.

    Raises:
      tfembed.errors.ArgumentError: a value that is not allowed.
    """

    combiner_computation: Callable[..., tf.Tensor]
    max_valency: int
    num_weights: int = 0
    initializer: Callable[..., tf.Tensor] | None = None
    combiner_weights_learning_rate: float | Callable[[], float] = 0.01

    def __post_init__(self) -> None:
        if not callable(self.combiner_computation):
            raise errors.ArgumentError(
                "`combiner_computation` must be a function; got "
                f"{self.combiner_computation!r}."
            )
        if type(self.max_valency) is not int or self.max_valency < 1:
            raise errors.ArgumentError(
                "`max_valency` must be an int and must be >= 1; got "
                f"{self.max_valency!r}."
            )
        if type(self.num_weights) is not int or self.num_weights < 0:
            raise errors.ArgumentError(
                "`num_weights` must be an int and must be >= 0; got "
                f"{self.num_weights!r}."
            )
        if self.num_weights > 0 and self.initializer is None:
            raise errors.ArgumentError(
                "When `num_weights` is greater than 0, `initializer` must be "
                "set."
            )


def is_custom(combiner: object) -> bool:
    """Whether a combiner is a CustomCombiner, ours or TensorFlow's."""
    # TensorFlow 2.16 has none.
    return type(combiner).__name__ == "CustomCombiner"


def as_combiner(combiner: Any) -> CustomCombiner:
    """Ours of a CustomCombiner of either kind.

    Raises:
      tfembed.errors.ArgumentError: values of TensorFlow's that it did not check.
    """
    if isinstance(combiner, CustomCombiner):
        return combiner
    _, initializers = slots_of(combiner)
    return CustomCombiner(
        combiner.combiner_computation,
        combiner.max_valency,
        combiner.num_weights,
        initializers[0] if initializers else None,
        combiner.combiner_weights_learning_rate,
    )
