"""Legacy optimizers of Keras as the fused rules of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfembed import optimizers
from tfembed.dynamic_embedding.training.families import v2_private
from tfembed.dynamic_embedding.training.fused_rule import (
    FusedRule,
    adagrad_rule,
    adam_rule,
    ftrl_rule,
)

__all__ = ["fused_v2_rule"]

# Of a sum of squares' root: what it adds is less than a float can tell.
_MOST_EPSILON = 1e-6


def fused_v2_rule(optimizer: Any) -> FusedRule | None:
    """The rule that moves rows as `optimizer` moves a variable, or None.

      SGD      w -= lr g
      Adagrad  a += g^2; w -= lr g / sqrt(a), where epsilon is too small to count
      Adam     m, v as usual; w -= lr sqrt(1 - b2^t) / (1 - b1^t) m
                                   / (sqrt(v) + epsilon)
      Ftrl     as tfembed.optimizers.FTRL

    Args:
      optimizer: an `OptimizerV2` of tf_keras, Keras 2 or
        tensorflow.python.keras. Its numbers count as they are now, apart from
        the learning rate.

    Returns:
      None for another class, also one derived from these, and for SGD with
      momentum, Adam with amsgrad, Ftrl with l2 shrinkage, an accumulator that
      starts from 0 or near to epsilon, and numbers that functions or tensors
      give.
    """
    if not v2_private.is_of_a_library(type(optimizer)):
        return None
    known = _RULES.get(type(optimizer).__name__)
    return known(optimizer) if known else None


def _sgd(optimizer: Any) -> FusedRule | None:
    momentum = v2_private.number(optimizer, "momentum")
    return FusedRule(optimizers.SGD()) if momentum == 0 else None


def _adagrad(optimizer: Any) -> FusedRule | None:
    # w -= lr g / (sqrt(a) + epsilon), and `a` never falls.
    start = v2_private.constant(optimizer, "_initial_accumulator_value")
    epsilon = v2_private.constant(optimizer, "epsilon")
    if start is None or epsilon is None:
        return None
    if epsilon > _MOST_EPSILON * start**0.5:
        return None
    return adagrad_rule(start)


def _adam(optimizer: Any) -> FusedRule | None:
    beta_1 = v2_private.number(optimizer, "beta_1")
    beta_2 = v2_private.number(optimizer, "beta_2")
    epsilon = v2_private.constant(optimizer, "epsilon")
    if beta_1 is None or beta_2 is None or epsilon is None:
        return None
    if optimizer.amsgrad:
        return None
    return adam_rule(beta_1, beta_2, epsilon, ("m", "v"))


def _ftrl(optimizer: Any) -> FusedRule | None:
    shrinkage = "_l2_shrinkage_regularization_strength"
    if v2_private.constant(optimizer, shrinkage) != 0:
        return None
    names = (
        "learning_rate_power",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "beta",
    )
    options = {name: v2_private.number(optimizer, name) for name in names}
    start = v2_private.constant(optimizer, "_initial_accumulator_value")
    options["initial_accumulator_value"] = start
    if None in options.values():
        return None
    return ftrl_rule(options, ("accumulator", "linear"))


_RULES: dict[str, Callable[[Any], FusedRule | None]] = {
    "SGD": _sgd,
    "Adagrad": _adagrad,
    "Adam": _adam,
    "Ftrl": _ftrl,
}
