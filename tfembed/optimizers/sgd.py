"""Stochastic gradient descent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from tfembed.optimizers import interface

__all__ = ["SGD"]


@dataclasses.dataclass(frozen=True)
class SGD(interface.Optimizer):
    """Stochastic gradient descent with the summed gradient g of a row w:

        w -= learning_rate * g

    There are no slots. The common parameters are those of `Optimizer`.

    Raises:
      tfembed.errors.ArgumentError: a parameter is not allowed.
    """

    rule_name: ClassVar[str] = "sgd"

    learning_rate: interface.LearningRate = 0.01
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clipvalue: interface.ClipValue = None
    low_dimensional_packing_status: bool = False
    _: dataclasses.KW_ONLY
    clipnorm: float | None = None
    global_clipnorm: float | None = None

    def __post_init__(self) -> None:
        self._check_common()

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The slots and their initial values."""
        return {}

    def _rule_parameters(self) -> Mapping[str, float | bool]:
        return {}
