"""Update rules of tables as what optimizers of other libraries would do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers

__all__ = [
    "FusedRule",
    "adagrad_rule",
    "adam_rule",
    "check_unchanged",
    "ftrl_rule",
]


@dataclasses.dataclass(frozen=True)
class FusedRule:
    """How a table does what an optimizer would.

    Attributes:
      optimizer: the update rule.
      rate: (learning rate, step from 1) -> the rule's learning rate; None: the
        learning rate itself.
      slot_labels: what the optimizer itself calls the rule's slots; (): the
        same.
    """

    optimizer: optimizers.Optimizer
    rate: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    slot_labels: tuple[str, ...] = ()


def adagrad_rule(start: float) -> FusedRule | None:
    """a += g^2; w -= lr g / sqrt(a).

    Args:
      start: a's first value; the rule's must be above 0, or None is returned.
    """
    if not start > 0:
        return None
    rule = optimizers.Adagrad(initial_accumulator_value=start)
    return FusedRule(rule, slot_labels=("accumulator",))


def adam_rule(
    beta_1: float, beta_2: float, epsilon: float, slot_labels: tuple[str, str]
) -> FusedRule:
    """m, v as usual; w -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)."""
    rule = optimizers.Adam(
        beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, sum_inside_sqrt=False
    )
    return FusedRule(rule, _bias_corrected(beta_1, beta_2), slot_labels)


def ftrl_rule(
    options: Mapping[str, Any], slot_labels: tuple[str, str]
) -> FusedRule | None:
    """As tfembed.optimizers.FTRL, of which `options` are arguments.

    None where the accumulator starts from 0.
    """
    if not options["initial_accumulator_value"] > 0:
        return None
    return FusedRule(optimizers.FTRL(**options), slot_labels=slot_labels)


def check_unchanged(
    rule: FusedRule,
    now: FusedRule | None,
    optimizer: Any,
    options: Callable[[Any], Mapping[str, Any]],
) -> None:
    """Refuses numbers that were set or restored since `rule` was made of them.

    Args:
      rule: what tables train with.
      now: what would be made of the optimizer today.
      optimizer: which they are of.
      options: (optimizer) -> its numbers today.

    Raises:
      tfembed.errors.StateError: tables would move by others than dense
        variables.
    """
    if now is not None and now.optimizer == rule.optimizer:
        return
    raise errors.StateError(
        f"The numbers of {type(optimizer).__name__} were set or restored to "
        f"others than tables train with: {rule.optimizer}; it has "
        f"{options(optimizer)}. Make an optimizer of these and wrap that."
    )


def _bias_corrected(
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
