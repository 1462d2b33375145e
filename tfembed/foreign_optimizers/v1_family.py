"""An optimizer of tf.compat.v1, wrapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import optimizers
from tfembed.foreign_optimizers import private
from tfembed.foreign_optimizers.rules import (
    FusedRule,
    adagrad_rule,
    adam_rule,
    ftrl_rule,
)
from tfembed.foreign_optimizers.variable_rows import VariableRows
from tfembed.foreign_optimizers.wrapped_optimizer import (
    WrappedOptimizer,
    counter,
)
from tfembed.ops.private import number_tensor

__all__ = ["V1Rows", "WrappedV1", "fused_v1_rule"]


class V1Rows(VariableRows):
    """Moves rows by `_resource_apply_dense` of a tf.compat.v1 optimizer.

    Args:
      opt: a `tf.compat.v1.train.Optimizer`.

    Raises:
      tfembed.errors.UnsupportedError: the optimizer cannot update single rows.
    """

    def rule_text(self) -> str:
        """The class and the numbers of the optimizer."""
        options = private.v1_options(self._opt)
        words = [f"{name}={value}" for name, value in options.items()]
        return " ".join([f"v1.{self._name}", *words])

    def prepare(self, variable: tf.Variable) -> None:
        """Makes variables like powers of beta, for a variable of this kind."""
        private.v1_create_state(self._twin, variable)

    def finish(self) -> None:
        """Ends a step in which no dense variable was updated."""
        private.v1_finish(self._twin)

    def _new_twin(
        self, opt: Any, start_slot: Callable[[str, Any], None]
    ) -> Any:
        return private.v1_twin(opt, start_slot)

    def _eager_copy(self, opt: Any) -> Any:
        return private.v1_eager_copy(opt)

    def _begin(self, variables: Sequence[tf.Variable]) -> None:
        del variables
        private.v1_begin(self._twin)

    def _update(self, gradients: Any, rows: tf.Variable, step: None) -> Any:
        return private.v1_update(self._twin, gradients, rows)

    def _end(self, step: None) -> None:
        """Does nothing: `finish` or the dense variables end a step."""
        del step  # AutoGraph cannot parse a method that has only a docstring.


_v1 = tf.compat.v1.train


def fused_v1_rule(optimizer: Any) -> FusedRule | None:
    """Returns the rule that updates rows as `optimizer` does, or None.

    GradientDescentOptimizer, AdagradOptimizer, AdamOptimizer and FtrlOptimizer
    have a rule; their subclasses do not.
    """
    known = _RULES.get(type(optimizer))
    return known(optimizer) if known else None


def _sgd(optimizer: Any) -> FusedRule:
    del optimizer
    return FusedRule(optimizers.SGD())


def _adagrad(optimizer: Any) -> FusedRule | None:
    return adagrad_rule(
        private.v1_option(optimizer, "initial_accumulator_value")
    )


def _adam(optimizer: Any) -> FusedRule | None:
    options = [
        private.v1_option(optimizer, name)
        for name in ("beta1", "beta2", "epsilon")
    ]
    if not tf.executing_eagerly() and any(tf.is_tensor(x) for x in options):
        # The graph computes it; the optimizer's own update is used.
        return None
    beta_1, beta_2, epsilon = (float(option) for option in options)
    return adam_rule(beta_1, beta_2, epsilon, ("m", "v"))


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
    options["beta"] = private.v1_option(optimizer, "beta") or 0.0
    return ftrl_rule(options, ("accum", "linear"))


_RULES: dict[type, Callable[[Any], FusedRule | None]] = {
    _v1.GradientDescentOptimizer: _sgd,
    _v1.AdagradOptimizer: _adagrad,
    _v1.AdamOptimizer: _adam,
    _v1.FtrlOptimizer: _ftrl,
}


class WrappedV1(WrappedOptimizer):
    """An optimizer of tf.compat.v1."""

    def __init__(self, opt: Any) -> None:
        self._opt = opt
        self.rule = fused_v1_rule(opt) or V1Rows(opt)
        self.name = opt.get_name()
        self.iterations = counter("iterations")

    def learning_rate(self) -> tf.Tensor:
        """The learning rate of the next step."""
        rate = private.v1_option(self._opt, "lr", "learning_rate")
        if rate is None:  # A user's own optimizer, which has its rate.
            return tf.constant(float("nan"))
        return tf.cast(number_tensor(rate), tf.float32)

    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Updates dense variables and increments the step."""
        moved = self._opt.apply_gradients(pairs)
        return [moved, self.iterations.assign_add(1, read_value=False)]

    def finish(self) -> None:
        """Increments the step."""
        if isinstance(self.rule, V1Rows):
            self.rule.finish()
        self.iterations.assign_add(1)
