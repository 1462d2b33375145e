"""An optimizer of Keras 3 or tf_keras, wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.training import private
from tfembed.dynamic_embedding.training.clipping import GradientClipping
from tfembed.dynamic_embedding.training.families.keras_rows import KerasRows
from tfembed.dynamic_embedding.training.families.keras_rules import fused_rule
from tfembed.dynamic_embedding.training.families.wrapped_optimizer import (
    WrappedOptimizer,
    lasting_name,
    takes_step,
)
from tfembed.dynamic_embedding.training.fused_rule import (
    FusedRule,
    check_unchanged,
)
from tfembed.ops.private import number_tensor

__all__ = ["WrappedKeras"]

# What Keras does in a step with all rows of a variable, and what to do instead.
_WHOLE_VARIABLE_OPTIONS = {
    "use_ema": "averages move for all rows in each step; leave it unset, and "
    "average rows of checkpoints",
    "gradient_accumulation_steps": "rows of earlier batches would have to be "
    "kept for the update; leave it unset, and give `apply_gradients` the "
    "gradients of several batches at once",
}


class WrappedKeras(WrappedOptimizer):
    """An optimizer of Keras 3 or tf_keras."""

    def __init__(self, opt: Any) -> None:
        for option, reason in _WHOLE_VARIABLE_OPTIONS.items():
            if getattr(opt, option, None):
                raise errors.UnsupportedError(
                    f"{type(opt).__name__}({option}={getattr(opt, option)!r}) "
                    f"cannot train tables: {reason}."
                )
        self._opt = opt
        self.rule = fused_rule(opt) or KerasRows(opt)
        self.name = lasting_name(opt, opt.name)
        self.iterations = opt.iterations

    @property
    def clipping(self) -> GradientClipping:
        """The optimizer's own, as it is now."""
        opt = self._opt
        by_norm = opt.clipnorm or opt.global_clipnorm
        return GradientClipping(
            loss_scale=getattr(opt, "loss_scale_factor", None),
            clipvalue=None if by_norm else opt.clipvalue,
            clipnorm=opt.clipnorm,
            global_clipnorm=opt.global_clipnorm,
        )

    def check_rule(self) -> None:
        """Refuses numbers that were set since the rule was made."""
        if isinstance(self.rule, FusedRule):
            now = fused_rule(self._opt)
            check_unchanged(self.rule, now, self._opt, _numbers)

    def learning_rate(self) -> tf.Tensor:
        """That of the next step."""
        rate = self._opt.learning_rate
        schedule = private.keras_schedule(self._opt)
        if callable(schedule) and takes_step(schedule):
            rate = schedule(self.iterations)  # tf_keras' own lags by a step.
        return tf.cast(number_tensor(rate), tf.float32)

    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Moves dense variables and counts the step."""
        self._opt.apply_gradients(pairs)
        return []

    def finish(self) -> None:
        """Counts the step."""
        self.iterations.assign_add(1)


def _numbers(opt: Any) -> dict[str, Any]:
    """What a Keras optimizer was made from, of Python's numbers."""
    return {
        name: value
        for name, value in sorted(vars(opt).items())
        if isinstance(value, (bool, int, float)) and not name.startswith("_")
    }
