"""FTRL-proximal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tfembed.optimizers import interface

__all__ = ["FTRL"]


@dataclasses.dataclass(frozen=True)
class FTRL(interface.Optimizer):
    """FTRL-proximal (McMahan et al., 2013, algorithm 1), with
    p = -learning_rate_power, l1 and l2 the regularization strengths:

        a' = a + g * g
        d  = a' ** p - a ** p
        l += g - d * w / learning_rate
        w  = (clip(l, -l1, l1) - l) / ((a' ** p + beta) / learning_rate + 2 l2)

    or, with `multiply_linear_by_learning_rate`, which keeps l times the
    learning rate and so allows a learning rate of 0:

        l += learning_rate * g - d * w
        w  = (clip(l, -learning_rate * l1, learning_rate * l1) - l)
             / (a' ** p + 2 * learning_rate * l2 + beta)

    A row's first update overwrites its initial value. Slots: accumulators a,
    from `initial_accumulator_value`, which must be positive, and linears l,
    from 0. `allow_zero_accumulator` has no effect, as in TensorFlow. The other
    parameters are those of `Optimizer`.

    Raises:
      tfembed.errors.ArgumentError: a parameter is not allowed.
    """

    rule_name: ClassVar[str] = "ftrl"

    learning_rate: interface.LearningRate = 0.001
    learning_rate_power: float = -0.5
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    beta: float = 0.0
    initial_accumulator_value: float = 0.1
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    slot_variable_creation_fn: Callable[..., Any] | None = None
    clipvalue: interface.ClipValue = None
    multiply_linear_by_learning_rate: bool = False
    allow_zero_accumulator: bool = False
    low_dimensional_packing_status: bool = False
    _: dataclasses.KW_ONLY
    clipnorm: float | None = None
    global_clipnorm: float | None = None

    def __post_init__(self) -> None:
        self._check_common()
        interface.check_slot_creator(self.slot_variable_creation_fn)
        interface.check_positive(
            "FTRL initial_accumulator_value", self.initial_accumulator_value
        )

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The slots and their initial values."""
        return {
            "accumulators": self.initial_accumulator_value,
            "linears": 0.0,
        }

    def _rule_parameters(self) -> Mapping[str, float | bool]:
        return {
            "learning_rate_power": self.learning_rate_power,
            "l1_regularization_strength": self.l1_regularization_strength,
            "l2_regularization_strength": self.l2_regularization_strength,
            "beta": self.beta,
            "initial_accumulator_value": self.initial_accumulator_value,
            "multiply_linear_by_learning_rate": (
                self.multiply_linear_by_learning_rate
            ),
        }
