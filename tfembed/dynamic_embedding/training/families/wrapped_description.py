"""A description of `tfembed.optimizers`, wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.dynamic_embedding.training.families.wrapped_optimizer import (
    WrappedOptimizer,
    counter,
    takes_step,
)
from tfembed.dynamic_embedding.training.fused_rule import (
    FusedRule,
)
from tfembed.ops.private import number_tensor

__all__ = ["WrappedDescription"]


class WrappedDescription(WrappedOptimizer):
    """A description of `tfembed.optimizers`, which moves tables only."""

    moves_dense = False

    def __init__(self, opt: optimizers.Optimizer) -> None:
        self._opt = opt
        self.rule = FusedRule(opt)
        self.name = type(opt).__name__
        self.iterations = counter("iterations")

    def learning_rate(self) -> tf.Tensor:
        """That of the next step."""
        rate: Any = self._opt.learning_rate
        if callable(rate):
            rate = rate(self.iterations) if takes_step(rate) else rate()
        return tf.cast(number_tensor(rate), tf.float32)

    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Refuses: a description moves tables only."""
        raise errors.UnsupportedError(
            f"{self.name} of tfembed.optimizers moves tables only; got "
            f"{pairs[0][1]!r}. Give DynamicEmbeddingOptimizer a Keras "
            "optimizer, or dense variables an optimizer of their own."
        )

    def finish(self) -> None:
        """Counts the step."""
        self.iterations.assign_add(1)
