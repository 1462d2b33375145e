"""RMSProp, and the parameters that it shares with CenteredRMSProp."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from tfembed.optimizers import interface

__all__ = ["RMSProp", "RMSPropParameters"]


@dataclasses.dataclass(frozen=True)
class RMSPropParameters(interface.KeywordOptimizer):
    """The checked parameters of RMSProp and CenteredRMSProp, without slots."""

    learning_rate: interface.LearningRate = 0.001
    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-10

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        interface.check_unit(f"{name} rho", self.rho)
        interface.check_finite(f"{name} momentum", self.momentum)
        interface.check_positive(f"{name} epsilon", self.epsilon)

    def _rule_parameters(self) -> Mapping[str, float | bool]:
        return {
            "rho": self.rho,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
        }


@dataclasses.dataclass(frozen=True)
class RMSProp(RMSPropParameters):
    """RMSProp (Tieleman and Hinton, 2012, lecture 6.5), only on looked-up rows:

        s  = rho * s + (1 - rho) * g * g
        m  = momentum * m + learning_rate * g / sqrt(s + epsilon)
        w -= m

    TPUs call this rule `RmsPropParameters` (optimization_parameters.proto); it
    equals TensorFlow's ApplyRMSProp.

    Slots: ms s and mom m, both from 0. rho is in [0, 1), epsilon is positive.
    The common parameters are those of `Optimizer`, by keyword.

    Raises:
      tfembed.errors.ArgumentError: a parameter is not allowed.
    """

    rule_name: ClassVar[str] = "rms_prop"

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The slots and their initial values."""
        return {"ms": 0.0, "mom": 0.0}
