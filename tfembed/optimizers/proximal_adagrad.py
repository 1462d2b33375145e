"""Adagrad with l1 and l2 regularization by a proximal step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from tfembed.optimizers import interface

__all__ = ["ProximalAdagrad"]


@dataclasses.dataclass(frozen=True)
class ProximalAdagrad(interface.KeywordOptimizer):
    """Adagrad, followed by the proximal step of l1 and l2:

        a += g * g
        r  = learning_rate / sqrt(a)
        x  = w - r * g
        w  = sign(x) * max(abs(x) - r * l1, 0) / (1 + r * l2)

    TPUs call this rule `ProximalAdagradParameters`
    (optimization_parameters.proto); it equals TensorFlow's
    ApplyProximalAdagrad (Duchi and Singer, 2009; Duchi, Hazan and Singer,
    2011).

    Slot: accumulators a, from `initial_accumulator_value`, which must be
    positive. l1 and l2, the regularization strengths, are not negative. The
    common parameters are those of `Optimizer`, by keyword.

    Raises:
      tfembed.errors.ArgumentError: a parameter is not allowed.
    """

    rule_name: ClassVar[str] = "proximal_adagrad"

    learning_rate: interface.LearningRate = 0.001
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        interface.check_positive(
            "ProximalAdagrad initial_accumulator_value",
            self.initial_accumulator_value,
        )
        for name in (
            "l1_regularization_strength",
            "l2_regularization_strength",
        ):
            interface.check_not_negative(
                f"ProximalAdagrad {name}", getattr(self, name)
            )

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The slots and their initial values."""
        return {"accumulators": self.initial_accumulator_value}

    def _rule_parameters(self) -> Mapping[str, float | bool]:
        return {
            "initial_accumulator_value": self.initial_accumulator_value,
            "l1_regularization_strength": self.l1_regularization_strength,
            "l2_regularization_strength": self.l2_regularization_strength,
        }
