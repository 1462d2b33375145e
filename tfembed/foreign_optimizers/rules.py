"""How tables train like an optimizer of another library.

A `FusedRule` is a rule of `tfembed.optimizers` with the same formula. A
`RowRule` runs the optimizer's own update, with `RowValues` as its variables.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
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

_MOST_SLOTS = 4  # The value of kMaxSlots in cc/core/rows/row_addresses.h.


@dataclasses.dataclass(frozen=True)
class FusedRule:
    """A rule of `tfembed.optimizers` that does the same as an optimizer.

    Attributes:
      optimizer: the update rule.
      rate: (learning rate, step from 1) -> the learning rate of the rule;
        None: the learning rate unchanged.
      slot_labels: the optimizer's names of the rule's slots; (): the same
        names.
    """

    optimizer: optimizers.Optimizer
    rate: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    slot_labels: tuple[str, ...] = ()


def adagrad_rule(start: float) -> FusedRule | None:
    """a += g^2; w -= lr g / sqrt(a).

    Args:
      start: the initial value of a; for values up to 0 the result is None.
    """
    if not start > 0:
        return None
    rule = optimizers.Adagrad(initial_accumulator_value=start)
    return FusedRule(rule, slot_labels=("accumulator",))


def adam_rule(
    beta_1: float, beta_2: float, epsilon: float, slot_labels: tuple[str, str]
) -> FusedRule:
    """m, v as usual; w -= lr c m / (sqrt(v) + epsilon).

    c = sqrt(1 - b2^t) / (1 - b1^t), where t is the step, from 1.
    """
    rule = optimizers.Adam(
        beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, sum_inside_sqrt=False
    )
    return FusedRule(rule, _bias_corrected(beta_1, beta_2), slot_labels)


def ftrl_rule(
    options: Mapping[str, Any], slot_labels: tuple[str, str]
) -> FusedRule | None:
    """As tfembed.optimizers.FTRL, whose arguments are `options`.

    Returns None if the accumulator starts from 0.
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
    """Raises an error if numbers have changed since `rule` was made of them.

    Args:
      rule: the rule with which tables train.
      now: the rule that the optimizer would have at present.
      optimizer: the optimizer of the rule.
      options: (optimizer) -> its present numbers.

    Raises:
      tfembed.errors.StateError: tables would train with other numbers than
        dense variables.
    """
    if now is not None and now.optimizer == rule.optimizer:
        return
    raise errors.StateError(
        f"The numbers of {type(optimizer).__name__} were set or restored "
        f"after tables got their rule, {rule.optimizer}: it now has "
        f"{options(optimizer)}. Make an optimizer with these and wrap it."
    )


def _bias_corrected(
    beta_1: float, beta_2: float
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """(lr, t) -> lr sqrt(1 - beta_2^t) / (1 - beta_1^t)."""

    def corrected(rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        # In double precision: in float32, 1 - beta_2^t loses half of its
        # digits.
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
      name: the name of the table.
      values: the rows, [n, dim].
      slots: the slots, each [n, dim].
      gradients: the gradients, [n, dim]; unchanged in an update's result.
    """

    name: str
    values: tf.Tensor
    slots: tuple[tf.Tensor, ...]
    gradients: tf.Tensor


class RowRule(abc.ABC):
    """A foreign optimizer that trains tables; `HashTable.attach` takes it.

    Attributes:
      slot_initial_values: the initial value of each slot by name, in order.
      state: the optimizer's variables besides rows and slots.
    """

    slot_initial_values: dict[str, float]
    state: list[tf.Variable]
    _twin: Any  # The optimizer that updates rows.

    @abc.abstractmethod
    def rule_text(self) -> str:
        """The optimizer's name and options, apart from its learning rate."""

    @abc.abstractmethod
    def update(
        self, tables: Sequence[TableRows], rate: tf.Tensor | None
    ) -> list[TableRows]:
        """Takes one step; returns the rows after it.

        Args:
          tables: the distinct rows of each table; a table comes once.
          rate: the learning rate; None: the optimizer's own.
        """

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of the slots, in order."""
        return tuple(self.slot_initial_values)

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Restores at its end what the updates in this context changed.

        That is the state, and numbers of Python: the Nadam of tf_keras counts
        its products of momenta.
        """
        state = [variable.numpy() for variable in self.state]
        numbers = {
            name: value
            for name, value in vars(self._twin).items()
            if isinstance(value, (bool, int, float))
        }
        try:
            yield
        finally:
            vars(self._twin).update(numbers)
            for variable, value in zip(self.state, state, strict=True):
                variable.assign(value)


def constant_of(values: Any, what: str) -> float:
    """Returns the number that all initial values of a slot have.

    Raises:
      tfembed.errors.UnsupportedError: the values differ.
    """
    array = np.unique(np.asarray(values, np.float64))
    if array.size != 1:
        raise errors.UnsupportedError(
            f"The slot {what} has several initial values; in a table a slot "
            "has the same initial value in every row and column."
        )
    return float(array[0])


def check_row_local(rule: RowRule, name: str) -> None:
    """Tests whether an update treats each row alone, in batches of any size.

    Args:
      rule: the rule, whose state is unchanged afterwards.
      name: the name of the optimizer, for errors.

    Raises:
      tfembed.errors.UnsupportedError: there are too many slots, the update
        fails on rows, or rows depend on each other.
    """
    if len(rule.slot_names) > _MOST_SLOTS:
        raise errors.UnsupportedError(
            f"{name} keeps {len(rule.slot_names)} slots; a row of a table has "
            f"room for {_MOST_SLOTS}."
        )
    try:
        is_local = _is_row_local(rule)
    except Exception as error:  # Third-party code may raise anything.
        raise errors.UnsupportedError(
            f"{name} cannot train tables: its update fails on a batch of rows "
            f"({type(error).__name__}: {error})."
        ) from error
    if not is_local:
        raise errors.UnsupportedError(
            f"{name} cannot train tables: its update of a row depends on other "
            "rows, and a table's rows that are not in the batch are not read. "
            "Use an optimizer whose update is elementwise."
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
    tables = [TableRows("rows", values, tuple(slots), gradients)]
    with rule.trial():
        (after,) = rule.update(tables, tf.constant(0.1))
    return [x.numpy() for x in (after.values, *after.slots)]


class RowValues:
    """Rows [n, dim] that an optimizer can assign like a variable.

    The object holds the newest value as a tensor, without state or handle, so
    that n may differ from step to step, and steps in several threads are
    independent. An optimizer may read it as a tensor, compute with it, and
    call `assign`, `assign_add` and `assign_sub`.

    Args:
      rows: the initial value.
      name: the name of the variable that the rows replace.
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
        """The shape [n, dim], with n if it is known."""
        return self.rows.shape

    def clear(self) -> None:
        """Releases the tensor, which may belong to a function's graph."""
        self.rows = None

    def read_value(self) -> tf.Tensor:
        """Returns the newest value."""
        return self.rows

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> RowValues:
        """Sets the value; ignores further arguments of `tf.Variable.assign`."""
        del args, kwargs
        value = tf.convert_to_tensor(value, self.dtype)
        self.rows = tf.ensure_shape(value, [None, self.shape[-1]])
        return self

    def assign_add(self, value: Any, *args: Any, **kwargs: Any) -> RowValues:
        """Adds `value` to the newest value."""
        return self.assign(self.rows + value)

    def assign_sub(self, value: Any, *args: Any, **kwargs: Any) -> RowValues:
        """Subtracts `value` from the newest value."""
        return self.assign(self.rows - value)

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        if dtype is not None and dtype != self.dtype:
            return tf.cast(self.rows, dtype, name=name)
        return self.rows


def _overload(operator: str) -> None:
    """Defines `operator` on the newest value."""

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
