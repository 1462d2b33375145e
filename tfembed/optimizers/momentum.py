"""Gradient descent with momentum."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from tfembed.optimizers import interface

__all__ = ["Momentum"]


@dataclasses.dataclass(frozen=True)
class Momentum(interface.KeywordOptimizer):
    """Gradient descent with a momentum of gradients, not of steps:

        m  = momentum * m + g
        w -= learning_rate * m                     or, with use_nesterov,
             learning_rate * (g + momentum * m)

    TPUs call this rule `MomentumParameters` (optimization_parameters.proto);
    it equals TensorFlow's ApplyMomentum. Keras' SGD has a momentum of steps
    instead: the two differ if the learning rate changes.

    Slot: momenta m, from 0. The common parameters are those of `Optimizer`, by
    keyword.

    Raises:
      tfembed.errors.ArgumentError: a parameter is not allowed.
    """

    rule_name: ClassVar[str] = "momentum"

    learning_rate: interface.LearningRate = 0.001
    momentum: float = 0.9
    use_nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        interface.check_finite("Momentum momentum", self.momentum)

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The slots and their initial values."""
        return {"momenta": 0.0}

    def _rule_parameters(self) -> Mapping[str, float | bool]:
        return {
            "momentum": self.momentum,
            "use_nesterov": self.use_nesterov,
        }
