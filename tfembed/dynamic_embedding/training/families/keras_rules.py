"""Keras' optimizers as the fused rules of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfembed import optimizers
from tfembed.dynamic_embedding.training.fused_rule import (
    FusedRule,
    adagrad_rule,
    adam_rule,
    ftrl_rule,
)

__all__ = ["fused_rule"]


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
