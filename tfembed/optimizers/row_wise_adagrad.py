"""Row-wise Adagrad."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from tfembed.optimizers import interface

__all__ = ["RowWiseAdagrad"]


@dataclasses.dataclass(frozen=True)
class RowWiseAdagrad(interface.KeywordOptimizer):
    """Adagrad with one accumulator per row, for any width:

        a += mean(g * g)                                  over the row
        w -= learning_rate * g / (sqrt(a) + epsilon)

    FBGEMM and TorchRec call this rule exact row-wise Adagrad
    (`EmbOptimType.EXACT_ROWWISE_ADAGRAD`); weight decay and clipping are those
    of `Optimizer`.

    Slot: accumulators a, [rows, 1], from `initial_accumulator_value`, which is
    not negative; epsilon is positive. The common parameters are those of
    `Optimizer`, by keyword.

    Raises:
      tfembed.errors.ArgumentError: a parameter is not allowed.
    """

    rule_name: ClassVar[str] = "row_wise_adagrad"

    learning_rate: interface.LearningRate = 0.001
    initial_accumulator_value: float = 0.0
    epsilon: float = 1e-08

    def __post_init__(self) -> None:
        super().__post_init__()
        interface.check_not_negative(
            "RowWiseAdagrad initial_accumulator_value",
            self.initial_accumulator_value,
        )
        interface.check_positive("RowWiseAdagrad epsilon", self.epsilon)

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The slots and their initial values."""
        return {"accumulators": self.initial_accumulator_value}

    @property
    def row_wise_slots(self) -> frozenset[str]:
        """The slots that have one float per row."""
        return frozenset(self.slot_names)

    def _rule_parameters(self) -> Mapping[str, float | bool]:
        return {
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }
