"""How an optimizer that is not fused moves rows: by its own update."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors

__all__ = ["RowRule", "TableRows", "check_row_local"]

_MOST_SLOTS = 4  # As kMaxSlots in cc/core/rows/mutable_row.h.


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
        """One step: the rows as they are after it.

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
