"""Lion."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from tfembed.optimizers import interface

__all__ = ["Lion"]


@dataclasses.dataclass(frozen=True)
class Lion(interface.KeywordOptimizer):
    """Lion (Chen et al., 2023, algorithm 2):

        w -= learning_rate * sign(beta_1 * m + (1 - beta_1) * g)
        m  = beta_2 * m + (1 - beta_2) * g

    The sign of 0 is 0. TPUs call this rule `LionParameters`
    (optimization_parameters.proto). `lazy_lion=True` updates only the rows
    that were looked up; False (`use_non_lazy_lion` there) updates all rows of
    the table, the others as if their gradient were 0.

    Slot: momenta m, from 0. beta_1 and beta_2 are in [0, 1). The common
    parameters are those of `Optimizer`, by keyword; the paper's weight decay is
    `weight_decay_factor` with
    `multiply_weight_decay_factor_by_learning_rate=True`.

    Raises:
      tfembed.errors.ArgumentError: a parameter is not allowed.
    """

    rule_name: ClassVar[str] = "lion"

    learning_rate: interface.LearningRate = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.99
    lazy_lion: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        interface.check_unit("Lion beta_1", self.beta_1)
        interface.check_unit("Lion beta_2", self.beta_2)
        interface.check_accumulates(self, "lazy_lion", self.lazy_lion)

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The slots and their initial values."""
        return {"momenta": 0.0}

    def _rule_parameters(self) -> Mapping[str, float | bool]:
        return {
            **({} if self.lazy_lion else {"lazy_lion": False}),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
        }
