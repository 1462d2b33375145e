"""An optimizer of tf.compat.v1, wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.training import private
from tfembed.dynamic_embedding.training.families.v1_rows import V1Rows
from tfembed.dynamic_embedding.training.families.v1_rules import fused_v1_rule
from tfembed.dynamic_embedding.training.families.wrapped_optimizer import (
    WrappedOptimizer,
    counter,
)
from tfembed.ops.private import number_tensor

__all__ = ["WrappedV1"]


class WrappedV1(WrappedOptimizer):
    """An optimizer of tf.compat.v1."""

    def __init__(self, opt: Any) -> None:
        self._opt = opt
        self.rule = fused_v1_rule(opt) or V1Rows(opt)
        self.name = opt.get_name()
        self.iterations = counter("iterations")

    def learning_rate(self) -> tf.Tensor:
        """That of the next step."""
        rate = private.v1_option(self._opt, "lr", "learning_rate")
        if rate is None:  # Of a user's own optimizer, which knows it.
            return tf.constant(float("nan"))
        return tf.cast(number_tensor(rate), tf.float32)

    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Moves dense variables and counts the step."""
        moved = self._opt.apply_gradients(pairs)
        return [moved, self.iterations.assign_add(1, read_value=False)]

    def finish(self) -> None:
        """Counts the step."""
        if isinstance(self.rule, V1Rows):
            self.rule.finish()
        self.iterations.assign_add(1)
