"""The interface of update rules, as tables see them."""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import tensorflow as tf

from tfembed import checks, errors

__all__ = [
    "ClipValue",
    "KeywordOptimizer",
    "LearningRate",
    "Optimizer",
    "is_schedule",
    "variable_of",
]

LearningRate: TypeAlias = "float | Callable[..., float] | None"
NORM_LIMITS = ("clipnorm", "global_clipnorm")
ClipValue: TypeAlias = "float | tuple[float | None, float | None] | None"


class Optimizer(abc.ABC):
    """Updates a row and its slots with the summed gradient of a step.

    A description: immutable, compared and hashed by its attributes, for any
    number of tables. The arithmetic is in `cc/core/optimizers`. Common
    parameters, in the order in which they act on a looked-up row:

      clipvalue: c or (low, high); the summed gradient is clipped elementwise
        to [-c, c] or [low, high]. None, for the pair or a limit: not clipped.
        `clip_gradient_min` and `clip_gradient_max` return the limits.
      clipnorm: c; if the Euclidean norm of a table's gradient is above c, the
        gradient is scaled down to it, as by Keras' `clipnorm`. A table's
        gradient is that of a variable with all rows: for a looked-up row the
        sum over the step's features, samples and replicas, for other rows 0.
      global_clipnorm: the same with the norm of all tables together that the
        step trains by an equal description. Dense weights, which another
        optimizer trains, do not count. For both norms, a row whose sum has a
        NaN or an infinity counts as 0, and a row that `admission` does not
        admit yet counts in full. At most one of the three limits may be given.
      weight_decay_factor: w -= factor * w, or factor * learning_rate * w with
        `multiply_weight_decay_factor_by_learning_rate`, once per step. None or
        0: none. (Decoupled weight decay, arxiv.org/abs/1711.05101.)
      learning_rate: a number; a tf.Variable or keras.Variable, read whenever
        gradients are applied; a function without arguments, called then; or a
        schedule, a function of the step like keras.optimizers.schedules: each
        table counts its own steps, and checkpoints save the count. None: in a
        Keras layer, the rate of the model's optimizer, which schedules and
        callbacks change.
      clip_weight_min, clip_weight_max: limits of the row after its update.
      use_gradient_accumulation: True: the gradients of a row are summed over
        the global batch and applied once. False: they are applied one by one.
      slot_variable_creation_fn: creates the slots of a table with a
        vocabulary: (the table's variable, slot names, their initializers) -> a
        dict of tf.Variables by slot name, in the shape of the table. They
        belong to the caller: checkpoints have them under
        `_variables/<table>/<slot>`, not under `<table>/<slot>`. None: the
        table creates and saves them.
      low_dimensional_packing_status: a TPU's memory layout; ignored here.

    A looked-up row is updated even if its gradient is 0: moments and weights
    decay.
    """

    rule_name: ClassVar[str]  # The name of the rule in cc/core/optimizers.
    # False: cc/core/optimizers has no such rule.
    is_fused: ClassVar[bool] = True

    learning_rate: LearningRate
    use_gradient_accumulation: bool
    clip_weight_min: float | None
    clip_weight_max: float | None
    weight_decay_factor: float | None
    multiply_weight_decay_factor_by_learning_rate: bool | None
    clipvalue: ClipValue
    clipnorm: float | None = None
    global_clipnorm: float | None = None
    slot_variable_creation_fn: Callable[..., Any] | None = None
    low_dimensional_packing_status: bool = False

    @property
    @abc.abstractmethod
    def slot_initial_values(self) -> Mapping[str, float]:
        """The names of the slots, in order, and their initial values."""

    @abc.abstractmethod
    def _rule_parameters(self) -> Mapping[str, float | bool]:
        """Returns the rule's own parameters, by their names in the core."""

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of the slots of each row."""
        return tuple(self.slot_initial_values)

    @property
    def row_wise_slots(self) -> frozenset[str]:
        """The slots that have one float per row, for any width."""
        return frozenset()

    def slot_shape(
        self, name: str, table_shape: tuple[int, int]
    ) -> tuple[int, int]:
        """Returns the shape of a slot of a table [vocabulary_size, dim]."""
        rows, dim = table_shape
        return (rows, 1 if name in self.row_wise_slots else dim)

    def slot_initializer(self, name: str) -> Callable[..., tf.Tensor]:
        """Returns the initializer of a slot: initializer(shape, dtype=...)."""
        return tf.constant_initializer(self.slot_initial_values[name])

    def check_fits_table(self, name: str, *, has_vocabulary: bool) -> None:
        """Raises ArgumentError if a table cannot have this optimizer.

        Args:
          name: the name of the table.
          has_vocabulary: whether the table's rows are a tf.Variable.
        """
        creator = self.slot_variable_creation_fn
        if creator is not None and not has_vocabulary:
            raise errors.ArgumentError(
                f"Table {name!r} has no vocabulary, so its slots lie in its "
                "rows, and `slot_variable_creation_fn` cannot make them; got "
                f"{creator}. Leave it None, or give the table a "
                "vocabulary_size."
            )

    @property
    def norm_limit(self) -> str | None:
        """The parameter that limits a norm of gradients; None: no limit."""
        given = [
            name for name in NORM_LIMITS if getattr(self, name) is not None
        ]
        return given[0] if given else None

    @property
    def clip_gradient_min(self) -> float | None:
        """The lower limit of a summed gradient."""
        return _limits(self.clipvalue)[0]

    @property
    def clip_gradient_max(self) -> float | None:
        """The upper limit of a summed gradient."""
        return _limits(self.clipvalue)[1]

    def rule_text(self) -> str:
        """Returns the rule as `cc/core/optimizers/update_rule.h` parses it.

        It does not contain the learning rate, which comes with each step.
        """
        return self._rule_text

    @functools.cached_property  # Descriptions are frozen, and each step asks.
    def _rule_text(self) -> str:
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
        """Raises an error for common parameters that are not allowed."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # All subclasses are dataclasses.
            value = getattr(self, field.name)
            if field.type == "bool":  # As in TensorFlow, any true value.
                object.__setattr__(self, field.name, bool(value))
            elif field.type == "float" or (
                field.type == "float | None" and value is not None
            ):
                number = _number(field.name, value)
                object.__setattr__(self, field.name, number)
        rate = as_learning_rate(self.learning_rate)
        object.__setattr__(self, "learning_rate", rate)
        if not self.use_gradient_accumulation and self.clipvalue is not None:
            raise errors.ArgumentError(
                "When `use_gradient_accumulation` is False, gradient clipping "
                "cannot be used and `clipvalue` should be left as None. "
                f"Received value {self.clipvalue} for argument `clipvalue`."
            )
        # Compared by meaning: c is (-c, c), and (None, None) is None.
        limits = _limits(self.clipvalue)
        object.__setattr__(
            self, "clipvalue", None if limits == (None, None) else limits
        )
        _check_order("clipvalue", *limits)
        self._check_norm_limits()
        _check_order(
            "(clip_weight_min, clip_weight_max)",
            self.clip_weight_min,
            self.clip_weight_max,
        )

    def _check_norm_limits(self) -> None:
        given = [
            name
            for name in ("clipvalue", *NORM_LIMITS)
            if getattr(self, name) is not None
        ]
        if len(given) > 1:
            raise errors.ArgumentError(
                "At most one of `clipvalue`, `clipnorm` and `global_clipnorm` "
                f"can be given; got {', '.join(given)}."
            )
        limit = self.norm_limit
        if limit is None:
            return
        if not 0 < getattr(self, limit) < math.inf:
            raise errors.ArgumentError(
                f"`{limit}` must be positive and finite; got "
                f"{getattr(self, limit)}."
            )
        if not self.use_gradient_accumulation:
            raise errors.ArgumentError(
                f"`{limit}` is a limit of summed gradients, and "
                "use_gradient_accumulation=False sums none. Leave one of them "
                "out."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeywordOptimizer(Optimizer):
    """A rule without a class in TensorFlow: common parameters by keyword."""

    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    slot_variable_creation_fn: Callable[..., Any] | None = None
    clipvalue: ClipValue = None
    low_dimensional_packing_status: bool = False
    clipnorm: float | None = None
    global_clipnorm: float | None = None

    def __post_init__(self) -> None:
        self._check_common()
        check_slot_creator(self.slot_variable_creation_fn)


def as_learning_rate(rate: Any) -> LearningRate:
    """Converts a variable to its read function; returns other rates unchanged.

    Raises:
      tfembed.errors.ArgumentError: the rate has another type.
    """
    variable = variable_of(rate)
    if variable is not None:
        return variable.read_value
    if rate is None or callable(rate):
        return rate
    number = checks.number(rate)
    if number is None:
        raise errors.ArgumentError(
            "`learning_rate` must be a number, a variable, a function without "
            "arguments, a schedule, that is a function of the step, or None, "
            f"the rate of a Keras model's optimizer; got {rate!r}."
        )
    return number


def variable_of(rate: Any) -> Any:
    """Returns the tf.Variable that a rate is or reads; None without one."""
    if getattr(rate, "__name__", None) == "read_value":
        # The result of `as_learning_rate`.
        rate = getattr(rate, "__self__", None)
    held = getattr(rate, "value", None)  # For a keras.Variable.
    found = (one for one in (rate, held) if isinstance(one, tf.Variable))
    return next(found, None)


def is_schedule(rate: Callable[..., Any]) -> bool:
    """Whether a learning rate is a schedule: a function of the step."""
    try:
        parameters = inspect.signature(rate).parameters.values()
    except ValueError:  # The signature is unknown.
        return False
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    return any(
        p.kind in positional and p.default is p.empty for p in parameters
    )


def check_slot_creator(creator: object) -> None:
    """Raises an error if `slot_variable_creation_fn` is not callable."""
    if creator is not None and not callable(creator):
        raise errors.ArgumentError(
            "Argument `slot_variable_creation_fn` must be either None or a "
            f"callable. Received: {creator}"
        )


def check_accumulates(rule: Optimizer, option: str, is_lazy: bool) -> None:
    """Raises an error if a rule updates all rows without summing gradients."""
    if not is_lazy and not rule.use_gradient_accumulation:
        raise errors.ArgumentError(
            f"`{option}=False` needs `use_gradient_accumulation=True`; got "
            "False for both."
        )


def check_positive(name: str, value: float) -> None:
    """Raises an error unless a parameter is positive."""
    if not value > 0:
        raise errors.ArgumentError(f"{name} must be positive; got {value}.")


def check_not_negative(name: str, value: float) -> None:
    """Raises an error unless a parameter is finite and not negative."""
    if not 0 <= value < math.inf:
        raise errors.ArgumentError(
            f"{name} must be finite and not negative; got {value}."
        )


def check_unit(name: str, value: float) -> None:
    """Raises an error unless a parameter is in [0, 1)."""
    if not 0 <= value < 1:
        raise errors.ArgumentError(f"{name} must be in [0, 1); got {value}.")


def check_finite(name: str, value: float) -> None:
    """Raises an error for a NaN or an infinity."""
    if not math.isfinite(value):
        raise errors.ArgumentError(f"{name} must be finite; got {value}.")


def _number(name: str, value: Any) -> float:
    number = checks.number(value)
    if number is None:
        raise errors.ArgumentError(f"`{name}` must be a number; got {value!r}.")
    return number


def _check_order(name: str, low: Any, high: Any) -> None:
    if low is not None and high is not None and low > high:
        raise errors.ArgumentError(
            f"`{name}` must be a lower and an upper limit; got {(low, high)}."
        )


def _limits(clipvalue: ClipValue) -> tuple[float | None, float | None]:
    if clipvalue is None:
        return (None, None)
    if isinstance(clipvalue, tuple) and len(clipvalue) == 2:
        low, high = (
            None if limit is None else _number("clipvalue", limit)
            for limit in clipvalue
        )
        return (low, high)
    if (number := checks.number(clipvalue)) is not None:
        return (-number, number)
    raise errors.ArgumentError(
        "`clipvalue` must be None, a number or a pair (min, max); got "
        f"{clipvalue!r}."
    )


def _text(value: float | bool) -> str:
    return str(int(value)) if isinstance(value, bool) else repr(float(value))
