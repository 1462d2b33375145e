"""Adam."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tfembed.optimizers import interface

__all__ = ["Adam"]


@dataclasses.dataclass(frozen=True)
class Adam(interface.Optimizer):
    """Adam (Kingma and Ba, 2014), as on TPUs:

        m  = beta_1 * m + (1 - beta_1) * g
        v  = beta_2 * v + (1 - beta_2) * g * g
        w -= learning_rate * m / sqrt(v + epsilon ** 2)   or, without
             learning_rate * m / (sqrt(v) + epsilon)        sum_inside_sqrt

    There is no bias correction: for that of the paper, let `learning_rate` be
    a function that returns lr * sqrt(1 - beta_2 ** t) / (1 - beta_1 ** t).

    `lazy_adam=True` updates only the rows that were looked up. False updates
    all rows of the table in each step (without a vocabulary, all rows that
    exist): the others as if their gradient were 0, which decays their moments,
    and with `weight_decay_factor` their weights. The cost of a step then grows
    with the table.

    Slots: momenta m and velocities v, both from 0. beta_1 and beta_2 are in
    [0, 1), epsilon is positive. The other parameters are those of `Optimizer`.

    Raises:
      tfembed.errors.ArgumentError: a parameter is not allowed.
    """

    rule_name: ClassVar[str] = "adam"

    learning_rate: interface.LearningRate = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-07
    lazy_adam: bool = True
    sum_inside_sqrt: bool = True
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
        interface.check_unit("Adam beta_1", self.beta_1)
        interface.check_unit("Adam beta_2", self.beta_2)
        interface.check_positive("Adam epsilon", self.epsilon)
        interface.check_accumulates(self, "lazy_adam", self.lazy_adam)

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The slots and their initial values."""
        return {"momenta": 0.0, "velocities": 0.0}

    def _rule_parameters(self) -> Mapping[str, float | bool]:
        return {
            **({} if self.lazy_adam else {"lazy_adam": False}),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "sum_inside_sqrt": self.sum_inside_sqrt,
        }
