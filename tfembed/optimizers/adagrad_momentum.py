"""Adagrad with momentum."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tfembed.optimizers import interface

__all__ = ["AdagradMomentum"]


@dataclasses.dataclass(frozen=True)
class AdagradMomentum(interface.Optimizer):
    """Adagrad with momentum:

        a  = a + g * g                            where beta2 is 1, else
             beta2 * a + (1 - beta2) * g * g
        s  = g * (a + epsilon) ** (-1 / exponent)
        m  = momentum * m + s
        w -= learning_rate * m                    or, with use_nesterov,
             learning_rate * (momentum * m + s)

    Slots: accumulators a and momenta m, both from 0. `epsilon` and `exponent`
    must be positive. The other parameters are those of `Optimizer`.

    Raises:
      tfembed.errors.ArgumentError: a parameter is not allowed.
    """

    rule_name: ClassVar[str] = "adagrad_momentum"

    learning_rate: interface.LearningRate = 0.001
    momentum: float = 0.0
    use_nesterov: bool = False
    exponent: float = 2
    beta2: float = 1
    epsilon: float = 1e-10
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
        interface.check_positive("AdagradMomentum epsilon", self.epsilon)
        interface.check_positive("AdagradMomentum exponent", self.exponent)

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The slots and their initial values."""
        return {"accumulators": 0.0, "momenta": 0.0}

    def _rule_parameters(self) -> Mapping[str, float | bool]:
        return {
            "momentum": self.momentum,
            "use_nesterov": self.use_nesterov,
            "exponent": self.exponent,
            "beta2": self.beta2,
            "epsilon": self.epsilon,
        }
