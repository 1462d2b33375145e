"""Keras' optimizers as the fused rules of tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers

__all__ = ["FusedRule", "fused_rule"]

# Options of Keras' base optimizer that a fused rule does not have.
_UNSUPPORTED_OPTIONS = (
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)


@dataclasses.dataclass(frozen=True)
class FusedRule:
    """How a table does what an optimizer would.

    Attributes:
      optimizer: the update rule.
      rate: (learning rate, step from 1) -> the rule's learning rate.
    """

    optimizer: optimizers.Optimizer
    rate: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = lambda rate, step: rate


def fused_rule(optimizer: Any) -> FusedRule:
    """The rule that moves looked-up rows as `optimizer` moves a variable.

      SGD      w -= lr g
      Adagrad  a += g^2; w -= lr g / sqrt(a + epsilon)
      Adam     m, v as usual; w -= lr sqrt(1 - b2^t) / (1 - b1^t) m
                                   / (sqrt(v) + epsilon)
      Ftrl     as tfembed.optimizers.FTRL

    t counts the optimizer's steps. Rows that were not looked up stay as they
    are, their Adam moments too (Keras lets those of all rows decay).

    Args:
      optimizer: a Keras 3 SGD without momentum, Adagrad, Adam or Ftrl.

    Raises:
      tfembed.errors.UnsupportedError: another optimizer or option.
    """
    cls = type(optimizer)
    known = _RULES.get(cls.__name__)
    if known is None or cls.__module__.partition(".")[0] != "keras":
        raise errors.UnsupportedError(
            f"{cls.__module__}.{cls.__name__} cannot train tables in this "
            "release; later ones bring more. Use a Keras 3 SGD (without "
            "momentum), Adagrad, Adam or Ftrl, or an optimizer of "
            "tfembed.optimizers."
        )
    for option in _UNSUPPORTED_OPTIONS:
        _require_unset(optimizer, option)
    return known(optimizer)


def _require_unset(optimizer: Any, option: str) -> None:
    value = getattr(optimizer, option, None)
    if value:
        raise errors.UnsupportedError(
            f"{type(optimizer).__name__}({option}={value!r}) cannot train tables "
            f"in this release; leave `{option}` unset."
        )


def _sgd(optimizer: Any) -> FusedRule:
    _require_unset(optimizer, "momentum")
    return FusedRule(optimizers.SGD())


def _adagrad(optimizer: Any) -> FusedRule:
    # The rule has no epsilon; an accumulator that starts higher by it is the
    # same: sqrt((a0 + epsilon) + sum g^2) = sqrt((a0 + sum g^2) + epsilon).
    start = optimizer.initial_accumulator_value + optimizer.epsilon
    return FusedRule(optimizers.Adagrad(initial_accumulator_value=start))


def _adam(optimizer: Any) -> FusedRule:
    _require_unset(optimizer, "amsgrad")
    beta_1, beta_2 = optimizer.beta_1, optimizer.beta_2

    def corrected(rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        # In double precision: 1 - beta_2^t loses half of a float's digits.
        t = tf.cast(step, tf.float64)
        bias = tf.sqrt(1 - tf.pow(tf.constant(beta_2, tf.float64), t)) / (
            1 - tf.pow(tf.constant(beta_1, tf.float64), t)
        )
        return rate * tf.cast(bias, tf.float32)

    rule = optimizers.Adam(
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=optimizer.epsilon,
        sum_inside_sqrt=False,
    )
    return FusedRule(rule, corrected)


def _ftrl(optimizer: Any) -> FusedRule:
    _require_unset(optimizer, "l2_shrinkage_regularization_strength")
    return FusedRule(
        optimizers.FTRL(
            learning_rate_power=optimizer.learning_rate_power,
            l1_regularization_strength=optimizer.l1_regularization_strength,
            l2_regularization_strength=optimizer.l2_regularization_strength,
            beta=optimizer.beta,
            initial_accumulator_value=optimizer.initial_accumulator_value,
        )
    )


_RULES: dict[str, Callable[[Any], FusedRule]] = {
    "SGD": _sgd,
    "Adagrad": _adagrad,
    "Adam": _adam,
    "Ftrl": _ftrl,
}
