"""Keras' optimizers as the fused rules of tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import optimizers

__all__ = ["FusedRule", "bias_corrected", "fused_rule"]


@dataclasses.dataclass(frozen=True)
class FusedRule:
    """How a table does what an optimizer would.

    Attributes:
      optimizer: the update rule.
      rate: (learning rate, step from 1) -> the rule's learning rate.
      slot_labels: what the optimizer itself calls the rule's slots; (): the
        same.
    """

    optimizer: optimizers.Optimizer
    rate: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = lambda rate, step: rate
    slot_labels: tuple[str, ...] = ()


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


def bias_corrected(
    beta_1: float, beta_2: float
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """(lr, t) -> lr sqrt(1 - beta_2^t) / (1 - beta_1^t)."""

    def corrected(rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        # In double precision: 1 - beta_2^t loses half of a float's digits.
        t = tf.cast(step, tf.float64)
        bias = tf.sqrt(1 - tf.pow(tf.constant(beta_2, tf.float64), t)) / (
            1 - tf.pow(tf.constant(beta_1, tf.float64), t)
        )
        return rate * tf.cast(bias, tf.float32)

    return corrected


def _sgd(optimizer: Any) -> FusedRule | None:
    return None if optimizer.momentum else FusedRule(optimizers.SGD())


def _adagrad(optimizer: Any) -> FusedRule | None:
    # The rule has no epsilon; an accumulator that starts higher by it is the
    # same: sqrt((a0 + epsilon) + sum g^2) = sqrt((a0 + sum g^2) + epsilon).
    start = optimizer.initial_accumulator_value + optimizer.epsilon
    if not start > 0:
        return None
    rule = optimizers.Adagrad(initial_accumulator_value=start)
    return FusedRule(rule, slot_labels=("accumulator",))


def _adam(optimizer: Any) -> FusedRule | None:
    if optimizer.amsgrad:
        return None
    beta_1, beta_2 = optimizer.beta_1, optimizer.beta_2
    rule = optimizers.Adam(
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=optimizer.epsilon,
        sum_inside_sqrt=False,
    )
    labels = ("momentum", "velocity")
    return FusedRule(rule, bias_corrected(beta_1, beta_2), labels)


def _ftrl(optimizer: Any) -> FusedRule | None:
    if optimizer.l2_shrinkage_regularization_strength:
        return None
    if not optimizer.initial_accumulator_value > 0:
        return None
    rule = optimizers.FTRL(
        learning_rate_power=optimizer.learning_rate_power,
        l1_regularization_strength=optimizer.l1_regularization_strength,
        l2_regularization_strength=optimizer.l2_regularization_strength,
        beta=optimizer.beta,
        initial_accumulator_value=optimizer.initial_accumulator_value,
    )
    return FusedRule(rule, slot_labels=("accumulator", "linear"))


_RULES: dict[str, Callable[[Any], FusedRule | None]] = {
    "SGD": _sgd,
    "Adagrad": _adagrad,
    "Adam": _adam,
    "Ftrl": _ftrl,
}
