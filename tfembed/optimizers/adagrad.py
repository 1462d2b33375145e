"""Adagrad."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tfembed.optimizers import interface

__all__ = ["Adagrad"]


@dataclasses.dataclass(frozen=True)
class Adagrad(interface.Optimizer):
    """Adagrad (Duchi, Hazan and Singer, 2011), without epsilon, as on TPUs:

        a += g * g
        w -= learning_rate * g / sqrt(a)

    Slot: accumulators a, from `initial_accumulator_value`, which must be
    positive. The other parameters are those of `Optimizer`.

    Raises:
      tfembed.errors.ArgumentError: a parameter is not allowed.
    """

    rule_name: ClassVar[str] = "adagrad"

    learning_rate: interface.LearningRate = 0.001
    initial_accumulator_value: float = 0.1
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    slot_variable_creation_fn: Callable[..., Any] | None = None
    clipvalue: interface.ClipValue = None
    low_dimensional_packing_status: bool = False
    _: dataclasses.KW_ONLY
    clipnorm: float | None = None
    global_clipnorm: float | None = None

    def __post_init__(self) -> None:
        self._check_common()
        interface.check_slot_creator(self.slot_variable_creation_fn)
        interface.check_positive(
            "Adagrad initial_accumulator_value", self.initial_accumulator_value
        )

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The slots and their initial values."""
        return {"accumulators": self.initial_accumulator_value}

    def _rule_parameters(self) -> Mapping[str, float | bool]:
        return {"initial_accumulator_value": self.initial_accumulator_value}
