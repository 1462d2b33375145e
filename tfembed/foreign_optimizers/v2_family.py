"""A legacy optimizer of Keras, wrapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.foreign_optimizers import private
from tfembed.foreign_optimizers.rules import (
    FusedRule,
    adagrad_rule,
    adam_rule,
    check_unchanged,
    ftrl_rule,
)
from tfembed.foreign_optimizers.table_gradients import GradientClipping
from tfembed.foreign_optimizers.variable_rows import VariableRows
from tfembed.foreign_optimizers.wrapped_optimizer import (
    WrappedOptimizer,
    lasting_name,
)

__all__ = ["V2Rows", "WrappedV2", "fused_v2_rule"]


class V2Rows(VariableRows):
    """Moves rows by `_resource_apply_dense` of an `OptimizerV2`.

    State of the optimizer besides slots (Nadam's momentum cache) changes once
    per step, with the dense variables or in `finish`; the tables' part of the
    step uses the changed value and then restores the old one.

    Args:
      opt: an `OptimizerV2` of tf_keras, Keras 2 or tensorflow.python.keras.

    Raises:
      tfembed.errors.UnsupportedError: the optimizer cannot update single rows.
    """

    def __init__(self, opt: Any) -> None:
        options = private.options(opt)
        words = [f"{name}={value}" for name, value in options.items()]
        self._text = " ".join([f"v2.{type(opt).__name__}", *words])
        super().__init__(opt)

    def rule_text(self) -> str:
        """The class and the numbers of the optimizer."""
        return self._text

    def prepare(self, variable: tf.Variable) -> None:
        """Does nothing: the twin has made all variables."""

    def finish(self) -> None:
        """Ends a step in which no dense variable was updated."""
        if private.state(self._opt):
            rows = private.local_variable(tf.zeros([1, 1]), "rows")
            private.begin(self._twin, [rows])
            private.destroy(rows)

    def _new_twin(
        self, opt: Any, start_slot: Callable[[str, Any], None]
    ) -> Any:
        return private.twin(opt, start_slot)

    def _eager_copy(self, opt: Any) -> Any:
        return private.eager_copy(opt)

    def _begin(self, variables: Sequence[tf.Variable]) -> tuple[Any, list[Any]]:
        before = [v.read_value() for v in private.state(self._opt)]
        return private.begin(self._twin, variables), before

    def _update(
        self, gradients: Any, rows: tf.Variable, step: tuple[Any, list[Any]]
    ) -> Any:
        return private.update(self._twin, gradients, rows, step[0])

    def _end(self, step: tuple[Any, list[Any]]) -> None:
        state = private.state(self._opt)
        for variable, value in zip(state, step[1], strict=True):
            variable.assign(value)


# Added to the root of a sum of squares, an epsilon this small has no effect.
_MOST_EPSILON = 1e-6


def fused_v2_rule(optimizer: Any) -> FusedRule | None:
    """Returns the rule that updates rows as `optimizer` does, or None.

      SGD      w -= lr g
      Adagrad  a += g^2; w -= lr g / sqrt(a), if epsilon is too small to count
      Adam     m, v as usual; w -= lr sqrt(1 - b2^t) / (1 - b1^t) m
                                   / (sqrt(v) + epsilon)
      Ftrl     as tfembed.optimizers.FTRL

    Args:
      optimizer: an `OptimizerV2` of tf_keras, Keras 2 or
        tensorflow.python.keras. The rule uses its present numbers, except for
        the learning rate.

    Returns:
      None for other classes, including subclasses of these, and for SGD with
      momentum, Adam with amsgrad, Ftrl with l2 shrinkage, an accumulator with
      an initial value of 0 or near epsilon, and numbers that are functions or
      tensors.
    """
    if not private.is_of_a_library(type(optimizer)):
        return None
    known = _RULES.get(type(optimizer).__name__)
    return known(optimizer) if known else None


def _sgd(optimizer: Any) -> FusedRule | None:
    momentum = private.number(optimizer, "momentum")
    return FusedRule(optimizers.SGD()) if momentum == 0 else None


def _adagrad(optimizer: Any) -> FusedRule | None:
    # w -= lr g / (sqrt(a) + epsilon), and `a` never falls.
    start = private.constant(optimizer, "_initial_accumulator_value")
    epsilon = private.constant(optimizer, "epsilon")
    if start is None or epsilon is None:
        return None
    if epsilon > _MOST_EPSILON * start**0.5:
        return None
    return adagrad_rule(start)


def _adam(optimizer: Any) -> FusedRule | None:
    beta_1 = private.number(optimizer, "beta_1")
    beta_2 = private.number(optimizer, "beta_2")
    epsilon = private.constant(optimizer, "epsilon")
    if beta_1 is None or beta_2 is None or epsilon is None:
        return None
    if optimizer.amsgrad:
        return None
    return adam_rule(beta_1, beta_2, epsilon, ("m", "v"))


def _ftrl(optimizer: Any) -> FusedRule | None:
    shrinkage = "_l2_shrinkage_regularization_strength"
    if private.constant(optimizer, shrinkage) != 0:
        return None
    names = (
        "learning_rate_power",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "beta",
    )
    options = {name: private.number(optimizer, name) for name in names}
    start = private.constant(optimizer, "_initial_accumulator_value")
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


class WrappedV2(WrappedOptimizer):
    """A legacy optimizer of Keras: an `OptimizerV2`."""

    def __init__(self, opt: Any) -> None:
        _check_whole_steps(opt)
        self._opt = opt
        self.rule = fused_v2_rule(opt) or V2Rows(opt)
        private.create_weights(opt)
        self.name = lasting_name(opt, private.name_of(opt))
        self.iterations = opt.iterations

    @property
    def clipping(self) -> GradientClipping | None:
        """The clipping options of the optimizer, at present."""
        return GradientClipping.of(
            clipvalue=self._opt.clipvalue,
            clipnorm=self._opt.clipnorm,
            global_clipnorm=self._opt.global_clipnorm,
        )

    def check_rule(self) -> None:
        """Raises an error if options have changed since the rule was made."""
        # In a trace, they are tensors.
        if isinstance(self.rule, FusedRule) and tf.executing_eagerly():
            now = fused_v2_rule(self._opt)
            check_unchanged(self.rule, now, self._opt, private.options)

    def learning_rate(self) -> tf.Tensor:
        """The learning rate of the next step."""
        return private.decayed_rate(self._opt)

    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Updates dense variables and increments the step."""
        return [self._opt.apply_gradients(pairs)]

    def finish(self) -> None:
        """Increments the step."""
        if isinstance(self.rule, V2Rows):
            self.rule.finish()
        self.iterations.assign_add(1)


def _check_whole_steps(opt: Any) -> None:
    """Raises an error if an optimizer's steps do more than update variables."""
    name = f"{type(opt).__module__}.{type(opt).__name__}"
    if "LossScaleOptimizer" in type(opt).__name__:
        raise errors.UnsupportedError(
            f"{name} cannot train tables: it wraps another one. Give that one, "
            "and scale the loss and its gradients yourself, or train with the "
            "policy 'mixed_bfloat16', which needs no scale."
        )
    step = private.overridden_step(opt)
    if step is not None:
        raise errors.UnsupportedError(
            f"{name} cannot train tables: it has its own `{step}`, which "
            "would not affect tables. Give an optimizer that overrides "
            "`_resource_apply_dense`, and change gradients before "
            "`apply_gradients`."
        )
    if opt.gradient_transformers or not private.aggregates_as_usual(opt):
        raise errors.UnsupportedError(
            f"{name} cannot train tables: its `gradient_transformers` or "
            "`gradient_aggregator` would get only the gradients of dense "
            "variables. Leave them out, and change gradients before "
            "`apply_gradients`."
        )
