"""The parameters that RMSProp and CenteredRMSProp share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tfembed.optimizers import interface

__all__ = ["RMSPropParameters"]


@dataclasses.dataclass(frozen=True)
class RMSPropParameters(interface.KeywordOptimizer):
    """The parameters of both, checked. Abstract: it has no slots."""

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
