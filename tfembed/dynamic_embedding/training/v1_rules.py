"""Optimizers of tf.compat.v1 as the fused rules of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import optimizers
from tfembed.dynamic_embedding.training import private
from tfembed.dynamic_embedding.training.keras_rules import (
    FusedRule,
    bias_corrected,
)

__all__ = ["fused_v1_rule"]

_v1 = tf.compat.v1.train


def fused_v1_rule(optimizer: Any) -> FusedRule | None:
    """The rule that moves rows as `optimizer` moves a variable, or None.

    GradientDescentOptimizer, AdagradOptimizer, AdamOptimizer and FtrlOptimizer
    have one; a class derived from them has not.
    """
    known = _RULES.get(type(optimizer))
    return known(optimizer) if known else None


def _sgd(optimizer: Any) -> FusedRule:
    del optimizer
    return FusedRule(optimizers.SGD())


def _adagrad(optimizer: Any) -> FusedRule | None:
    start = private.v1_option(optimizer, "initial_accumulator_value")
    if not start > 0:
        return None
    rule = optimizers.Adagrad(initial_accumulator_value=start)
    return FusedRule(rule, slot_labels=("accumulator",))


def _adam(optimizer: Any) -> FusedRule | None:
    options = [
        private.v1_option(optimizer, name)
        for name in ("beta1", "beta2", "epsilon")
    ]
    if not tf.executing_eagerly() and any(tf.is_tensor(x) for x in options):
        return None  # What a graph computes; the optimizer's own update does.
    beta_1, beta_2, epsilon = (float(option) for option in options)
    rule = optimizers.Adam(
        beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, sum_inside_sqrt=False
    )
    return FusedRule(rule, bias_corrected(beta_1, beta_2), ("m", "v"))


def _ftrl(optimizer: Any) -> FusedRule | None:
    if private.v1_option(optimizer, "l2_shrinkage_regularization_strength"):
        return None
    names = (
        "learning_rate_power",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "initial_accumulator_value",
    )
    options = {name: private.v1_option(optimizer, name) for name in names}
    if not options["initial_accumulator_value"] > 0:
        return None
    beta = private.v1_option(optimizer, "beta") or 0.0
    rule = optimizers.FTRL(**options, beta=beta)
    return FusedRule(rule, slot_labels=("accum", "linear"))


_RULES: dict[type, Callable[[Any], FusedRule | None]] = {
    _v1.GradientDescentOptimizer: _sgd,
    _v1.AdagradOptimizer: _adagrad,
    _v1.AdamOptimizer: _adam,
    _v1.FtrlOptimizer: _ftrl,
}
