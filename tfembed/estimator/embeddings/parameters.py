"""The update rules of embedding tables: TPUEstimator's Parameters classes."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

from tfembed import checks, errors, optimizers

__all__ = [
    "AdagradParameters",
    "AdamParameters",
    "FtrlParameters",
    "MomentumParameters",
    "OptimizationParameters",
    "ProximalAdagradParameters",
    "RMSPropParameters",
    "StochasticGradientDescentParameters",
]


@dataclasses.dataclass(frozen=True)
class OptimizationParameters(abc.ABC):
    """The parameters that all update rules share, and the names of slots.

    A subclass is a description; `rule` returns the update rule of
    `tfembed.optimizers` with the arithmetic. All classes take the arguments
    below; each lists them, as their position differs from class to class:

      use_gradient_accumulation: True: the gradients of a row are summed over
        the global batch and applied once. False: they are summed per core and
        applied core by core, starting with the row's own core (id % cores).
      clip_weight_min, clip_weight_max: limits of a row after its update.
      weight_decay_factor: w -= factor * w before the update, or factor *
        learning_rate * w with `multiply_weight_decay_factor_by_learning_rate`.
      clip_gradient_min, clip_gradient_max: limits of a row's summed gradient;
        they need `use_gradient_accumulation`.

    Attributes:
      learning_rate: a number, which TableConfigs and columns may override.
      variable_suffixes: the names of the slots, as in the variables of the
        corresponding optimizer of `tf.compat.v1.train`.
    """

    variable_suffixes: ClassVar[tuple[str, ...]] = ()

    learning_rate: float

    @abc.abstractmethod
    def rule(self) -> optimizers.Optimizer:
        """The update rule, with `learning_rate` as its learning rate."""

    def __post_init__(self) -> None:
        if checks.number(self.learning_rate) is None:
            raise errors.ArgumentError(
                f"`learning_rate` of {type(self).__name__} must be a number; "
                f"got {self.learning_rate!r}. A rate that changes is given as "
                "`learning_rate_fn` to a TableConfig or an embedding column."
            )
        given: Any = self
        limits = (given.clip_gradient_min, given.clip_gradient_max)
        if limits != (None, None) and not given.use_gradient_accumulation:
            raise errors.ArgumentError(
                "When using gradient clipping limits, gradient accumulation "
                f"must be enabled; got the limits {limits} and "
                "use_gradient_accumulation=False."
            )

    def _common(self) -> dict[str, Any]:
        """The arguments that every rule takes."""
        given: Any = self
        limits = (given.clip_gradient_min, given.clip_gradient_max)
        return {
            "learning_rate": float(given.learning_rate),
            "use_gradient_accumulation": given.use_gradient_accumulation,
            "clip_weight_min": given.clip_weight_min,
            "clip_weight_max": given.clip_weight_max,
            "weight_decay_factor": given.weight_decay_factor,
            "multiply_weight_decay_factor_by_learning_rate": (
                given.multiply_weight_decay_factor_by_learning_rate
            ),
            "clipvalue": None if limits == (None, None) else limits,
        }


@dataclasses.dataclass(frozen=True)
class AdagradParameters(OptimizationParameters):
    """Adagrad, as `tfembed.Adagrad`: a += g * g, w -= rate * g / sqrt(a).

    Attributes:
      initial_accumulator: the initial value of a; positive.
    """

    variable_suffixes: ClassVar[tuple[str, ...]] = ("Adagrad",)

    initial_accumulator: float = 0.1
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_accumulator(self.initial_accumulator)

    def rule(self) -> optimizers.Optimizer:
        """The update rule."""
        return optimizers.Adagrad(
            initial_accumulator_value=self.initial_accumulator, **self._common()
        )


@dataclasses.dataclass(frozen=True)
class ProximalAdagradParameters(OptimizationParameters):
    """Adagrad, then a proximal step, as `tfembed.optimizers.ProximalAdagrad`.

    Attributes:
      initial_accumulator: the initial value of the accumulator; positive.
      l1_regularization_strength, l2_regularization_strength: not negative.
    """

    variable_suffixes: ClassVar[tuple[str, ...]] = ("ProximalAdagrad",)

    initial_accumulator: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_accumulator(self.initial_accumulator)
        _check_strengths(self)

    def rule(self) -> optimizers.Optimizer:
        """The update rule."""
        return optimizers.ProximalAdagrad(
            initial_accumulator_value=self.initial_accumulator,
            l1_regularization_strength=self.l1_regularization_strength,
            l2_regularization_strength=self.l2_regularization_strength,
            **self._common(),
        )


@dataclasses.dataclass(frozen=True)
class AdamParameters(OptimizationParameters):
    """Adam without bias correction, as `tfembed.Adam`.

    For the correction of the paper, give a `learning_rate_fn` that returns
    rate * sqrt(1 - beta2 ** t) / (1 - beta1 ** t) for t = global_step + 1.

    Attributes:
      beta1, beta2: in [0, 1).
      epsilon: positive.
      lazy_adam: True updates only the rows of the batch. False updates all
        rows, and needs `use_gradient_accumulation`.
      sum_inside_sqrt: whether epsilon is added (as its square) inside the
        square root.
    """

    variable_suffixes: ClassVar[tuple[str, ...]] = ("Adam/m", "Adam/v")

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-08
    lazy_adam: bool = True
    sum_inside_sqrt: bool = True
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise errors.ArgumentError(
                    f"{name} must be between 0. and 1; got {value}."
                )
        if self.epsilon <= 0.0:
            raise errors.ArgumentError(
                f"epsilon must be positive; got {self.epsilon}."
            )
        if not self.use_gradient_accumulation and not self.lazy_adam:
            raise errors.ArgumentError(
                "When disabling Lazy Adam, gradient accumulation must be used; "
                "got lazy_adam=False and use_gradient_accumulation=False."
            )

    def rule(self) -> optimizers.Optimizer:
        """The update rule."""
        return optimizers.Adam(
            beta_1=self.beta1,
            beta_2=self.beta2,
            epsilon=self.epsilon,
            lazy_adam=self.lazy_adam,
            sum_inside_sqrt=self.sum_inside_sqrt,
            **self._common(),
        )


@dataclasses.dataclass(frozen=True)
class FtrlParameters(OptimizationParameters):
    """FTRL-proximal, as `tfembed.FTRL`.

    Attributes:
      learning_rate_power: at most 0.
      initial_accumulator_value: the initial value of the accumulator;
        positive.
      l1_regularization_strength, l2_regularization_strength: not negative.
      multiply_linear_by_learning_rate, beta, allow_zero_accumulator: as in
        `tfembed.FTRL`.
    """

    variable_suffixes: ClassVar[tuple[str, ...]] = ("Ftrl", "Ftrl_1")

    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    multiply_linear_by_learning_rate: bool = False
    beta: float = 0.0
    allow_zero_accumulator: bool = False
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learning_rate_power > 0.0:
            raise errors.ArgumentError(
                "learning_rate_power must be less than or equal to 0. got "
                f"{self.learning_rate_power}."
            )
        if self.initial_accumulator_value <= 0.0:
            raise errors.ArgumentError(
                "initial_accumulator_value must be greater than 0. got "
                f"{self.initial_accumulator_value}."
            )
        _check_strengths(self)

    def rule(self) -> optimizers.Optimizer:
        """The update rule."""
        return optimizers.FTRL(
            learning_rate_power=self.learning_rate_power,
            l1_regularization_strength=self.l1_regularization_strength,
            l2_regularization_strength=self.l2_regularization_strength,
            beta=self.beta,
            initial_accumulator_value=self.initial_accumulator_value,
            multiply_linear_by_learning_rate=(
                self.multiply_linear_by_learning_rate
            ),
            allow_zero_accumulator=self.allow_zero_accumulator,
            **self._common(),
        )


@dataclasses.dataclass(frozen=True)
class StochasticGradientDescentParameters(OptimizationParameters):
    """Gradient descent, as `tfembed.SGD`: w -= rate * g."""

    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None

    def rule(self) -> optimizers.Optimizer:
        """The update rule."""
        return optimizers.SGD(**self._common())


@dataclasses.dataclass(frozen=True)
class MomentumParameters(OptimizationParameters):
    """Gradient descent with momentum, as `tfembed.optimizers.Momentum`.

    Attributes:
      momentum: the factor of the momentum in each step.
      use_nesterov: whether to use Nesterov momentum.
    """

    variable_suffixes: ClassVar[tuple[str, ...]] = ("Momentum",)

    momentum: float
    use_nesterov: bool = False
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None

    def rule(self) -> optimizers.Optimizer:
        """The update rule."""
        return optimizers.Momentum(
            momentum=self.momentum,
            use_nesterov=self.use_nesterov,
            **self._common(),
        )


@dataclasses.dataclass(frozen=True)
class RMSPropParameters(OptimizationParameters):
    """RMSProp, as `tfembed.optimizers.RMSProp`.

    Attributes:
      rho: in [0, 1).
      momentum: the factor of the momentum in each step.
      epsilon: positive.
    """

    variable_suffixes: ClassVar[tuple[str, ...]] = ("RMSProp/ms", "RMSProp/mom")

    rho: float
    momentum: float
    epsilon: float
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None

    def rule(self) -> optimizers.Optimizer:
        """The update rule."""
        return optimizers.RMSProp(
            rho=self.rho,
            momentum=self.momentum,
            epsilon=self.epsilon,
            **self._common(),
        )


def _check_accumulator(value: float) -> None:
    if value <= 0:
        raise errors.ArgumentError(
            f"Adagrad initial_accumulator must be positive; got {value}."
        )


def _check_strengths(given: Any) -> None:
    for name in ("l1_regularization_strength", "l2_regularization_strength"):
        value = getattr(given, name)
        if value < 0.0:
            raise errors.ArgumentError(
                f"{name} must be greater than or equal to 0. got {value}."
            )
