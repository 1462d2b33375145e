"""An optimizer of Keras 3 or tf_keras, wrapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.dynamic_embedding.training import private
from tfembed.dynamic_embedding.training.clipping import GradientClipping
from tfembed.dynamic_embedding.training.families.keras_rows import KerasRows
from tfembed.dynamic_embedding.training.families.wrapped_optimizer import (
    WrappedOptimizer,
    lasting_name,
    takes_step,
)
from tfembed.dynamic_embedding.training.fused_rule import (
    FusedRule,
    adagrad_rule,
    adam_rule,
    check_unchanged,
    ftrl_rule,
)
from tfembed.ops.private import number_tensor

__all__ = ["WrappedKeras", "fused_rule"]

# FOLDED keras_rules: Keras' optimizers as the fused rules of tables.


def fused_rule(optimizer: Any) -> FusedRule | None:
    """The rule that moves looked-up rows as `optimizer` moves a variable.

      SGD      w -= lr g
      Adagrad  a += g^2; w -= lr g / sqrt(a + epsilon)
      Adam     m, v as usual; w -= lr sqrt(1 - b2^t) / (1 - b1^t) m
                                   / (sqrt(v) + epsilon)
      Ftrl     as tfembed.optimizers.FTRL

    t counts the optimizer's steps. Rows that were not looked up stay as they
    are, their Adam moments too (Keras lets those of all rows decay).

    Args:
      optimizer: of Keras 3 or tf_keras.

    Returns:
      None for another class, also one derived from these, and for SGD with
      momentum, Adam with amsgrad, Ftrl with l2 shrinkage, an accumulator that
      starts from 0, and weight decay.
    """
    cls = type(optimizer)
    if cls.__module__.partition(".")[0] not in ("keras", "tf_keras"):
        return None
    if optimizer.weight_decay:
        return None
    known = _RULES.get(cls.__name__)
    return known(optimizer) if known else None


def _sgd(optimizer: Any) -> FusedRule | None:
    return None if optimizer.momentum else FusedRule(optimizers.SGD())


def _adagrad(optimizer: Any) -> FusedRule | None:
    # The rule has no epsilon; an accumulator that starts higher by it is the
    # same: sqrt((a0 + epsilon) + sum g^2) = sqrt((a0 + sum g^2) + epsilon).
    start = optimizer.initial_accumulator_value + optimizer.epsilon
    return adagrad_rule(start)


def _adam(optimizer: Any) -> FusedRule | None:
    if optimizer.amsgrad:
        return None
    labels = ("momentum", "velocity")
    return adam_rule(
        optimizer.beta_1, optimizer.beta_2, optimizer.epsilon, labels
    )


def _ftrl(optimizer: Any) -> FusedRule | None:
    if optimizer.l2_shrinkage_regularization_strength:
        return None
    names = (
        "learning_rate_power",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "beta",
        "initial_accumulator_value",
    )
    options = {name: getattr(optimizer, name) for name in names}
    return ftrl_rule(options, ("accumulator", "linear"))


_RULES: dict[str, Callable[[Any], FusedRule | None]] = {
    "SGD": _sgd,
    "Adagrad": _adagrad,
    "Adam": _adam,
    "Ftrl": _ftrl,
}

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
