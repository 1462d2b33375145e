"""What every update rule tells the tables."""

from __future__ import annotations

import abc
import numbers
from collections.abc import Callable, Mapping
from typing import ClassVar, TypeAlias

from tfembed import errors

__all__ = ["ClipValue", "LearningRate", "Optimizer"]

LearningRate: TypeAlias = "float | Callable[[], float]"
ClipValue: TypeAlias = "float | tuple[float | None, float | None] | None"


class Optimizer(abc.ABC):
    """How a row and its slots move for the summed gradient of a step.

    A description: immutable, compared and hashed by its attributes, used by any
    number of tables. The arithmetic is in `cc/core/optimizers`. Common
    parameters, in the order in which they act on a row that was looked up:

      clipvalue: c or (low, high); the summed gradient is clipped elementwise to
        [-c, c] or [low, high]. None, for the whole or an end: not clipped.
        Read as `clip_gradient_min` and `clip_gradient_max`.
      weight_decay_factor: w -= factor * w, or factor * learning_rate * w with
        `multiply_weight_decay_factor_by_learning_rate`, once per step. None or
        0: none. (Decoupled weight decay, arxiv.org/abs/1711.05101.)
      learning_rate: a number, or a function without arguments that is called
        whenever gradients are applied.
      clip_weight_min, clip_weight_max: limits of the row after its update.
      use_gradient_accumulation: True: the gradients of a row are summed over
        the global batch and applied once. False: applied one by one.
      slot_variable_creation_fn: not in this release.
      low_dimensional_packing_status: a TPU's memory layout; no effect here.

    A row that was looked up moves even where its gradient is 0: what decays
    (moments, weights) does.
    """

    rule_name: ClassVar[str]  # In cc/core/optimizers.

    learning_rate: LearningRate
    use_gradient_accumulation: bool
    clip_weight_min: float | None
    clip_weight_max: float | None
    weight_decay_factor: float | None
    multiply_weight_decay_factor_by_learning_rate: bool | None
    clipvalue: ClipValue

    @property
    @abc.abstractmethod
    def slot_initial_values(self) -> Mapping[str, float]:
        """The names of the slots, in order, and what they start from."""

    @abc.abstractmethod
    def _rule_parameters(self) -> Mapping[str, float | bool]:
        """The rule's own parameters, by their names in the core."""

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of the slots kept beside each row."""
        return tuple(self.slot_initial_values)

    @property
    def clip_gradient_min(self) -> float | None:
        """The lower limit of a summed gradient."""
        return _limits(self.clipvalue)[0]

    @property
    def clip_gradient_max(self) -> float | None:
        """The upper limit of a summed gradient."""
        return _limits(self.clipvalue)[1]

    def rule_text(self) -> str:
        """The rule as `cc/core/optimizers/interface.h` reads it.

        The learning rate is no part of it: it comes with each step.
        """
        parameters = {**self._rule_parameters(), **self._common_parameters()}
        words = [f"{k}={_text(v)}" for k, v in parameters.items()]
        return " ".join([self.rule_name, *words])

    def _common_parameters(self) -> dict[str, float | bool]:
        limits = {
            "clip_gradient_min": self.clip_gradient_min,
            "clip_gradient_max": self.clip_gradient_max,
            "clip_weight_min": self.clip_weight_min,
            "clip_weight_max": self.clip_weight_max,
        }
        parameters: dict[str, float | bool] = {
            name: value for name, value in limits.items() if value is not None
        }
        if self.weight_decay_factor:
            parameters["weight_decay"] = self.weight_decay_factor
            parameters["weight_decay_times_learning_rate"] = bool(
                self.multiply_weight_decay_factor_by_learning_rate
            )
        parameters["accumulate"] = self.use_gradient_accumulation
        return parameters

    def _check_common(self) -> None:
        """Raises for common parameters that are not allowed."""
        rate = self.learning_rate
        if not callable(rate) and not isinstance(rate, numbers.Real):
            raise errors.ArgumentError(
                "`learning_rate` must be a number or a function without "
                f"arguments; got {rate!r}."
            )
        if not self.use_gradient_accumulation and self.clipvalue is not None:
            raise errors.ArgumentError(
                "When `use_gradient_accumulation` is False, gradient clipping "
                "cannot be used and `clipvalue` should be left as None. "
                f"Received value {self.clipvalue} for argument `clipvalue`."
            )
        # Compared by what it means: c is (-c, c), and (None, None) is None.
        limits = _limits(self.clipvalue)
        object.__setattr__(
            self, "clipvalue", None if limits == (None, None) else limits
        )


def check_slot_creator(creator: object) -> None:
    """Raises for anything but None as `slot_variable_creation_fn`."""
    if creator is None:
        return
    if not callable(creator):
        raise errors.ArgumentError(
            "Argument `slot_variable_creation_fn` must be either None or a "
            f"callable. Received: {creator}"
        )
    raise errors.UnsupportedError(
        "`slot_variable_creation_fn` is not in this release; leave it None, and "
        "the slots are made and saved with their table."
    )


def check_positive(name: str, value: float) -> None:
    """Raises where a parameter that must be positive is not."""
    if not value > 0:
        raise errors.ArgumentError(f"{name} must be positive; got {value}.")


def _limits(clipvalue: ClipValue) -> tuple[float | None, float | None]:
    if clipvalue is None:
        return (None, None)
    if isinstance(clipvalue, tuple) and len(clipvalue) == 2:
        return clipvalue
    if isinstance(clipvalue, numbers.Real):
        return (-clipvalue, clipvalue)
    raise errors.ArgumentError(
        "`clipvalue` must be None, a number or a pair (min, max); got "
        f"{clipvalue!r}."
    )


def _text(value: float | bool) -> str:
    return str(int(value)) if isinstance(value, bool) else repr(float(value))
