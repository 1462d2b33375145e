"""A legacy optimizer of Keras, wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.training.clipping import GradientClipping
from tfembed.dynamic_embedding.training.families import v2_private
from tfembed.dynamic_embedding.training.families.v2_rows import V2Rows
from tfembed.dynamic_embedding.training.families.v2_rules import fused_v2_rule
from tfembed.dynamic_embedding.training.families.wrapped_optimizer import (
    WrappedOptimizer,
    lasting_name,
)
from tfembed.dynamic_embedding.training.fused_rule import (
    FusedRule,
    check_unchanged,
)

__all__ = ["WrappedV2"]


class WrappedV2(WrappedOptimizer):
    """A legacy optimizer of Keras: an `OptimizerV2`."""

    def __init__(self, opt: Any) -> None:
        _check_whole_steps(opt)
        self._opt = opt
        self.rule = fused_v2_rule(opt) or V2Rows(opt)
        v2_private.create_weights(opt)
        self.name = lasting_name(opt, v2_private.name_of(opt))
        self.iterations = opt.iterations

    @property
    def clipping(self) -> GradientClipping:
        """The optimizer's own, as it is now."""
        return GradientClipping(
            clipvalue=self._opt.clipvalue,
            clipnorm=self._opt.clipnorm,
            global_clipnorm=self._opt.global_clipnorm,
        )

    def check_rule(self) -> None:
        """Refuses numbers that were set since the rule was made."""
        # Traced, they are no numbers.
        if isinstance(self.rule, FusedRule) and tf.executing_eagerly():
            now = fused_v2_rule(self._opt)
            check_unchanged(self.rule, now, self._opt, v2_private.options)

    def learning_rate(self) -> tf.Tensor:
        """That of the next step."""
        return v2_private.decayed_rate(self._opt)

    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Moves dense variables and counts the step."""
        return [self._opt.apply_gradients(pairs)]

    def finish(self) -> None:
        """Counts the step."""
        if isinstance(self.rule, V2Rows):
            self.rule.finish()
        self.iterations.assign_add(1)


def _check_whole_steps(opt: Any) -> None:
    """Refuses a legacy optimizer that does more than to move variables."""
    name = f"{type(opt).__module__}.{type(opt).__name__}"
    if "LossScaleOptimizer" in type(opt).__name__:
        raise errors.UnsupportedError(
            f"{name} cannot train tables: it wraps another one. Give that one, "
            "and scale the loss and its gradients yourself, or train with the "
            "policy 'mixed_bfloat16', which needs no scale."
        )
    step = v2_private.overridden_step(opt)
    if step is not None:
        raise errors.UnsupportedError(
            f"{name} cannot train tables: it has a `{step}` of its own, of which "
            "tables would see nothing. Give an optimizer that changes "
            "`_resource_apply_dense`, and change gradients before "
            "`apply_gradients`."
        )
    if opt.gradient_transformers or not v2_private.aggregates_as_usual(opt):
        raise errors.UnsupportedError(
            f"{name} cannot train tables: its `gradient_transformers` or "
            "`gradient_aggregator` would see the gradients of dense variables "
            "alone. Leave them out, and change gradients before "
            "`apply_gradients`."
        )
