"""Combiners written by users."""

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
    """Combines the rows of a sample's ids by a function of tensors.

    Like `tf.tpu.experimental.embedding.CustomCombiner`, which is accepted too.
    It works everywhere, but is slower than "sum", "mean" and "sqrtn", which
    are fused. A sample without ids gives zeros, without a call. Weights of ids
    are not allowed. Sequence features and dense features are not combined.

    Attributes:
      combiner_computation: called for one sample as fn(valency, vectors), or
        with num_weights as fn(valency, vectors, weights): valency int32 [],
        the number of its ids; vectors float32 [max_valency, dim], their rows
        in the order of the input, then zeros; weights float32 [num_weights].
        It returns float32 [dim], is vectorized over the batch, and
        differentiated.
      max_valency: at least 1; further ids of a sample are dropped.
      num_weights: the number of trained weights that samples share; 0: none.
      initializer: the initializer of the weights, called as
        initializer(shape, dtype=...).
      combiner_weights_learning_rate: a number, or a function without arguments
        that each step calls: w -= rate * g, g summed over the batch.

    Raises:
      tfembed.errors.ArgumentError: a value is not allowed.
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
    """Whether a combiner is a CustomCombiner of tfembed or TensorFlow."""
    # TensorFlow 2.16 has no CustomCombiner.
    return type(combiner).__name__ == "CustomCombiner"


def as_combiner(combiner: Any) -> CustomCombiner:
    """Converts a CustomCombiner of tfembed or TensorFlow to tfembed's.

    Raises:
      tfembed.errors.ArgumentError: a value that TensorFlow did not check.
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
