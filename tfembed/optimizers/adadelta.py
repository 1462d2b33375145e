"""Adadelta."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from tfembed.optimizers import interface

__all__ = ["Adadelta"]


@dataclasses.dataclass(frozen=True)
class Adadelta(interface.KeywordOptimizer):
    """Adadelta (Zeiler, 2012), only on looked-up rows:

        a  = rho * a + (1 - rho) * g * g
        d  = g * sqrt(u + epsilon) / sqrt(a + epsilon)
        u  = rho * u + (1 - rho) * d * d
        w -= learning_rate * d

    TPUs call this rule `AdadeltaParameters` (optimization_parameters.proto);
    it equals TensorFlow's ApplyAdadelta.

    Slots: accumulators a and updates u, both from 0. rho is in [0, 1), epsilon
    is positive. The common parameters are those of `Optimizer`, by keyword.

    Raises:
      tfembed.errors.ArgumentError: a parameter is not allowed.
    """

    rule_name: ClassVar[str] = "adadelta"

    learning_rate: interface.LearningRate = 0.001
    rho: float = 0.95
    epsilon: float = 1e-07

    def __post_init__(self) -> None:
        super().__post_init__()
        interface.check_unit("Adadelta rho", self.rho)
        interface.check_positive("Adadelta epsilon", self.epsilon)

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The slots and their initial values."""
        return {"accumulators": 0.0, "updates": 0.0}

    def _rule_parameters(self) -> Mapping[str, float | bool]:
        return {
            "rho": self.rho,
            "epsilon": self.epsilon,
        }
