"""How tables train as an optimizer of another library would.

By a `FusedRule`, one of ours with the same formula; or by a `RowRule`, the
optimizer's own update, with `RowValues` in the place of its variables.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors, optimizers

__all__ = [
    "FusedRule",
    "RowRule",
    "RowValues",
    "TableRows",
    "adagrad_rule",
    "adam_rule",
    "check_row_local",
    "check_unchanged",
    "constant_of",
    "ftrl_rule",
]

_MOST_SLOTS = 4  # As kMaxSlots in cc/core/rows/row_addresses.h.


@dataclasses.dataclass(frozen=True)
class FusedRule:
    """How a table does what an optimizer would.

    Attributes:
      optimizer: the update rule.
      rate: (learning rate, step from 1) -> the rule's learning rate; None: the
        learning rate itself.
      slot_labels: what the optimizer itself calls the rule's slots; (): the
        same.
    """

    optimizer: optimizers.Optimizer
    rate: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    slot_labels: tuple[str, ...] = ()


def adagrad_rule(start: float) -> FusedRule | None:
    """a += g^2; w -= lr g / sqrt(a).

    Args:
      start: a's first value; the rule's must be above 0, or None is returned.
    """
    if not start > 0:
        return None
    rule = optimizers.Adagrad(initial_accumulator_value=start)
    return FusedRule(rule, slot_labels=("accumulator",))


def adam_rule(
    beta_1: float, beta_2: float, epsilon: float, slot_labels: tuple[str, str]
) -> FusedRule:
    """m, v as usual; w -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)."""
    rule = optimizers.Adam(
        beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, sum_inside_sqrt=False
    )
    return FusedRule(rule, _bias_corrected(beta_1, beta_2), slot_labels)


def ftrl_rule(
    options: Mapping[str, Any], slot_labels: tuple[str, str]
) -> FusedRule | None:
    """As tfembed.optimizers.FTRL, of which `options` are arguments.

    None where the accumulator starts from 0.
    """
    if not options["initial_accumulator_value"] > 0:
        return None
    return FusedRule(optimizers.FTRL(**options), slot_labels=slot_labels)


def check_unchanged(
    rule: FusedRule,
    now: FusedRule | None,
    optimizer: Any,
    options: Callable[[Any], Mapping[str, Any]],
) -> None:
    """Refuses numbers that were set or restored since `rule` was made of them.

    Args:
      rule: what tables train with.
      now: what would be made of the optimizer today.
      optimizer: which they are of.
      options: (optimizer) -> its numbers today.

    Raises:
      tfembed.errors.StateError: tables would move by others than dense
        variables.
    """
    if now is not None and now.optimizer == rule.optimizer:
        return
    raise errors.StateError(
        f"The numbers of {type(optimizer).__name__} were set or restored to "
        f"others than tables train with: {rule.optimizer}; it has "
        f"{options(optimizer)}. Make an optimizer of these and wrap that."
    )


def _bias_corrected(
    beta_1: float, beta_2: float
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """(lr, t) -> lr sqrt(1 - beta_2^t) / (1 - beta_1^t)."""

    def corrected(rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        # In double precision: 1 - beta_2^t loses half of a float's digits.
        t = tf.cast(step, tf.float64)
        bias = tf.sqrt(1 - tf.pow(tf.constant(beta_2, tf.float64), t)) / (
            1 - tf.pow(tf.constant(beta_1, tf.float64), t)
        )
        return rate * tf.cast(bias, tf.float32)

    return corrected


@dataclasses.dataclass(frozen=True, eq=False)
class TableRows:
    """Distinct rows of one table in one step.

    Attributes:
      name: the table's.
      values: [n, dim].
      slots: per slot [n, dim].
      gradients: [n, dim]; for an update's result the same.
    """

    name: str
    values: tf.Tensor
    slots: tuple[tf.Tensor, ...]
    gradients: tf.Tensor


class RowRule(abc.ABC):
    """A foreign optimizer as tables see it: what `HashTable.attach` takes.

    Attributes:
      slot_initial_values: the slots' names, in order, and what they start from.
      state: variables that the optimizer keeps beside rows and slots.
    """

    slot_initial_values: dict[str, float]
    state: list[tf.Variable]

    @abc.abstractmethod
    def rule_text(self) -> str:
        """The optimizer's name and options, apart from its learning rate."""

    @abc.abstractmethod
    def update(
        self, tables: Sequence[TableRows], rate: tf.Tensor | None
    ) -> list[TableRows]:
        """Takes one step; returns the rows as they are after it.

        Args:
          tables: distinct rows, each table's once.
          rate: the learning rate; None: the optimizer's own.
        """

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The slots' names, in order."""
        return tuple(self.slot_initial_values)


def constant_of(values: Any, what: str) -> float:
    """The number that all of a slot's initial values are.

    Raises:
      tfembed.errors.UnsupportedError: they differ.
    """
    array = np.unique(np.asarray(values, np.float64))
    if array.size != 1:
        raise errors.UnsupportedError(
            f"The slot {what} starts from values that differ; in a table every "
            "row's slots start from one number."
        )
    return float(array[0])


def check_row_local(rule: RowRule, name: str) -> None:
    """Tries whether rows move by themselves, one as well as many.

    Args:
      rule: it is as before when this returns.
      name: the optimizer's, for errors.

    Raises:
      tfembed.errors.UnsupportedError: too many slots, an update that fails on
        rows, or one in which rows depend on each other.
    """
    if len(rule.slot_names) > _MOST_SLOTS:
        raise errors.UnsupportedError(
            f"{name} keeps {len(rule.slot_names)} slots; a row of a table has "
            f"room for {_MOST_SLOTS}."
        )
    before = [variable.numpy() for variable in rule.state]
    try:
        is_local = _is_row_local(rule)
    except Exception as error:  # Whatever foreign code raises.
        raise errors.UnsupportedError(
            f"{name} cannot train tables: its update fails on a batch of rows "
            f"({type(error).__name__}: {error})."
        ) from error
    finally:
        for variable, value in zip(rule.state, before, strict=True):
            variable.assign(value)
    if not is_local:
        raise errors.UnsupportedError(
            f"{name} cannot train tables: its update of a row depends on other "
            "rows, and a table's rows that are not in the batch are not read. "
            "Use an optimizer whose update goes element by element."
        )


def _is_row_local(rule: RowRule) -> bool:
    rng = np.random.default_rng(0)
    n, dim = 3, 2
    values = rng.normal(size=(n, dim)) * [[1.0], [10.0], [0.1]]
    gradients = rng.normal(size=(n, dim)) * [[1.0], [0.1], [10.0]]
    slots = [np.full([n, dim], x) for x in rule.slot_initial_values.values()]
    all_rows = [values, *slots, gradients]
    together = _moved(rule, all_rows)
    apart = [_moved(rule, [x[i : i + 1] for x in all_rows]) for i in range(n)]
    return all(
        np.allclose(one, np.concatenate(parts), rtol=1e-4, atol=1e-6)
        for one, *parts in zip(together, *apart, strict=True)
    )


def _moved(rule: RowRule, rows: list[Any]) -> list[Any]:
    values, *slots, gradients = [tf.constant(x, tf.float32) for x in rows]
    before = [variable.numpy() for variable in rule.state]
    tables = [TableRows("rows", values, tuple(slots), gradients)]
    (after,) = rule.update(tables, tf.constant(0.1))
    for variable, value in zip(rule.state, before, strict=True):
        variable.assign(value)
    return [x.numpy() for x in (after.values, *after.slots)]


class RowValues:
    """Rows [n, dim] that an optimizer assigns to as it does to a variable.

    It holds the newest value as a tensor: no state, no handle, so that n may
    differ from step to step, and steps in several threads share nothing. An
    optimizer may read it as a tensor, calculate with it, and call `assign`,
    `assign_add` and `assign_sub`.

    Args:
      rows: the first value.
      name: the name of the variable that the rows stand for.
    """

    def __init__(self, rows: tf.Tensor, name: str) -> None:
        self.rows: Any = rows
        self.name = name
        self._unique_id = f"tfembed_rows_{name}_{id(self)}"

    @property
    def value(self) -> tf.Tensor:
        """The newest value."""
        return self.rows

    @property
    def dtype(self) -> tf.DType:
        """The rows' dtype."""
        return self.rows.dtype

    @property
    def shape(self) -> tf.TensorShape:
        """[n, dim], n as far as it is known."""
        return self.rows.shape

    def clear(self) -> None:
        """Lets go of the tensor, which may belong to a function's graph."""
        self.rows = None

    def read_value(self) -> tf.Tensor:
        """The newest value."""
        return self.rows

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> RowValues:
        """Takes `value`; further arguments of `tf.Variable`'s are ignored."""
        del args, kwargs
        value = tf.convert_to_tensor(value, self.dtype)
        self.rows = tf.ensure_shape(value, [None, self.shape[-1]])
        return self

    def assign_add(self, value: Any, *args: Any, **kwargs: Any) -> RowValues:
        """Adds `value`."""
        return self.assign(self.rows + value)

    def assign_sub(self, value: Any, *args: Any, **kwargs: Any) -> RowValues:
        """Subtracts `value`."""
        return self.assign(self.rows - value)

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        if dtype is not None and dtype != self.dtype:
            return tf.cast(self.rows, dtype, name=name)
        return self.rows


def _overload(operator: str) -> None:
    """Has `operator` calculate with the newest value."""

    def calculate(self: RowValues, *others: Any) -> Any:
        rows = [x.rows if isinstance(x, RowValues) else x for x in others]
        return getattr(self.rows, operator)(*rows)

    setattr(RowValues, operator, calculate)


for _operator in (
    *("__neg__", "__abs__", "__getitem__", "__add__", "__radd__", "__sub__"),
    *("__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
    *("__pow__", "__rpow__", "__lt__", "__le__", "__gt__", "__ge__"),
):
    _overload(_operator)
