"""Simulated quantization of looked-up rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import checks, errors

__all__ = ["QuantizationConfig", "quantized"]


@dataclasses.dataclass(frozen=True)
class QuantizationConfig:
    """Rounds the elements of looked-up rows to buckets, before combining.

    Like `tf.tpu.experimental.embedding.QuantizationConfig`, which is accepted
    too. With step = (upper - lower) / (num_buckets - 1), an element x becomes

        floor((clip(x, lower, upper) - lower) / step + 0.5) * step + lower

    Only lookups of TPUEmbedding round: the table keeps its values, and
    gradients pass unchanged. As in TensorFlow, lookups for serving and those
    of TPUEmbeddingV0 do not round: to serve the same values, round the rows of
    the exported tables by this formula.

    Attributes:
      num_buckets: the number of buckets, at least 2.
      lower, upper: the values of the first and the last bucket.

    Raises:
      tfembed.errors.ArgumentError: there are fewer buckets, or the limits are
        not finite and ascending.
    """

    num_buckets: int
    lower: float
    upper: float

    def __post_init__(self) -> None:
        buckets = checks.whole(self.num_buckets)
        if buckets is None or buckets < 2:
            raise errors.ArgumentError(
                f"num_buckets is {self.num_buckets}, must be at least 2 for "
                "simulated quantization."
            )
        lower, upper = checks.number(self.lower), checks.number(self.upper)
        if (
            lower is None
            or upper is None
            or not -math.inf < lower < upper < math.inf
        ):
            raise errors.ArgumentError(
                "`lower` must be less than `upper`, both finite; got "
                f"{self.lower} and {self.upper}."
            )
        object.__setattr__(self, "num_buckets", buckets)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)


def quantized(rows: tf.Tensor, config: Any) -> tf.Tensor:
    """Rounds `rows` by a QuantizationConfig; None leaves them unchanged.

    The gradient is the identity.
    """
    if config is None:
        return rows
    step = (config.upper - config.lower) / (config.num_buckets - 1)

    @tf.custom_gradient
    def rounded(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        clipped = tf.clip_by_value(x, config.lower, config.upper)
        bucket = tf.floor((clipped - config.lower) / step + 0.5)
        return bucket * step + config.lower, tf.identity

    return rounded(rows)
