"""Yogi."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from tfembed.optimizers import interface

__all__ = ["Yogi"]


@dataclasses.dataclass(frozen=True)
class Yogi(interface.KeywordOptimizer):
    """Yogi (Zaheer et al., 2018, algorithm 2), only on looked-up rows:

        m  = beta_1 * m + (1 - beta_1) * g
        v -= (1 - beta_2) * sign(v - g * g) * g * g
        r  = learning_rate / (sqrt(v) + epsilon)
        x  = w - r * m
        w  = sign(x) * max(abs(x) - r * l1, 0) / (1 + r * l2)

    TPUs call this rule `ProximalYogiParameters`
    (optimization_parameters.proto); defaults and initial values are those of
    TensorFlow's class of that name. Its source is not public: the last two
    lines are the proximal step of ApplyProximalAdagrad. There is no bias
    correction, as in `Adam`.

    Slots: v, from `initial_accumulator_value`, and m, from 0. beta_1 and beta_2
    are in [0, 1), epsilon is positive; the regularization strengths l1 and l2
    and the initial value are not negative. The common parameters are those of
    `Optimizer`, by keyword.

    Raises:
      tfembed.errors.ArgumentError: a parameter is not allowed.
    """

    rule_name: ClassVar[str] = "yogi"

    learning_rate: interface.LearningRate = 0.01
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 0.001
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    initial_accumulator_value: float = 1e-06

    def __post_init__(self) -> None:
        super().__post_init__()
        interface.check_unit("Yogi beta_1", self.beta_1)
        interface.check_unit("Yogi beta_2", self.beta_2)
        interface.check_positive("Yogi epsilon", self.epsilon)
        for name in (
            "l1_regularization_strength",
            "l2_regularization_strength",
            "initial_accumulator_value",
        ):
            interface.check_not_negative(f"Yogi {name}", getattr(self, name))

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The slots and their initial values."""
        return {"v": self.initial_accumulator_value, "m": 0.0}

    def _rule_parameters(self) -> Mapping[str, float | bool]:
        return {
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "l1_regularization_strength": self.l1_regularization_strength,
            "l2_regularization_strength": self.l2_regularization_strength,
            "initial_accumulator_value": self.initial_accumulator_value,
        }
