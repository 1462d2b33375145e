"""Runs an optimizer's own update, which writes variables, on rows of tables."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.foreign_optimizers import private
from tfembed.foreign_optimizers.rules import (
    RowRule,
    TableRows,
    check_row_local,
    constant_of,
)
from tfembed.ops.private import eager_mode
from tfembed.ops.session_graph import current_graph

__all__ = ["VariableRows"]


class VariableRows(RowRule):
    """Updates rows by kernels that take the handles of variables.

    Rows and slots are copied into variables that exist for one update. A twin
    of the optimizer finds its slots there; it shares all other attributes with
    the optimizer, including the learning rate.

    Args:
      opt: the optimizer.

    Raises:
      tfembed.errors.UnsupportedError: the optimizer cannot update single rows.
    """

    def __init__(self, opt: Any) -> None:
        self._opt = opt
        self._name = type(opt).__name__
        self._lock = threading.RLock()
        self.slot_initial_values = {}
        self.state = []  # `opt` saves its own state.
        if current_graph() is None:
            self._twin = self._twin_of(opt, self._start_slot)
            check_row_local(self, self._name)
        else:  # In a graph, nothing can be tried before a session runs.
            with eager_mode():
                tried = type(self)(self._eager_copy(opt))
            self.slot_initial_values = tried.slot_initial_values
            self._twin = self._twin_of(opt, lambda name, initial: None)

    def update(
        self, tables: Sequence[TableRows], rate: tf.Tensor | None
    ) -> list[TableRows]:
        """See `RowRule.update`."""
        del rate
        variables = [self._variables_of(table) for table in tables]
        with self._lock:  # The twin has the slots of one table at a time.
            step = self._begin([rows for rows, _ in variables])
            moved = [
                self._move(table, *its_variables, step)
                for table, its_variables in zip(tables, variables, strict=True)
            ]
            self._end(step)
        return moved

    def update_variables(
        self, rows: tf.Variable, slots: Sequence[tf.Variable], gradients: Any
    ) -> None:
        """Takes one step on permanent variables; `slots` are in order."""
        with self._lock:
            step = self._begin([rows])
            self._apply(gradients, rows, slots, step)
            self._end(step)

    @abc.abstractmethod
    def prepare(self, variable: tf.Variable) -> None:
        """Makes the optimizer's variables that are not slots."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Ends a step in which no dense variable was updated."""

    @abc.abstractmethod
    def _new_twin(
        self, opt: Any, start_slot: Callable[[str, Any], None]
    ) -> Any:
        """Returns the twin; it calls `start_slot` for each slot."""

    @abc.abstractmethod
    def _eager_copy(self, opt: Any) -> Any:
        """Copies a graph's optimizer so that eager mode can run it."""

    @abc.abstractmethod
    def _begin(self, variables: Sequence[tf.Variable]) -> Any:
        """Starts a step of the twin; returns the other methods' `step`."""

    @abc.abstractmethod
    def _update(self, gradients: Any, rows: tf.Variable, step: Any) -> Any:
        """Updates rows by the twin; returns the operation."""

    @abc.abstractmethod
    def _end(self, step: Any) -> None:
        """Ends the tables' part of a step, before dense variables' part."""

    def _twin_of(self, opt: Any, start_slot: Callable[[str, Any], None]) -> Any:
        try:
            return self._new_twin(opt, start_slot)
        except Exception as error:  # Third-party code may raise anything.
            raise errors.UnsupportedError(
                f"{self._name} cannot train tables: it makes no slots for rows "
                f"({type(error).__name__}: {error})."
            ) from error

    def _variables_of(
        self, table: TableRows
    ) -> tuple[tf.Variable, list[tf.Variable]]:
        """Returns variables with a table's rows and slots."""
        rows = private.local_variable(table.values, table.name)
        slots = [
            private.local_variable(slot, f"{table.name}/{name}")
            for name, slot in zip(self.slot_names, table.slots, strict=True)
        ]
        return rows, slots

    def _apply(
        self,
        gradients: Any,
        rows: tf.Variable,
        slots: Sequence[tf.Variable],
        step: Any,
    ) -> Any:
        twin: Any = type(self._twin)
        twin.slots = dict(zip(self.slot_names, slots, strict=True))
        updated = self._update(gradients, rows, step)
        twin.slots = {}
        return updated

    def _move(
        self,
        table: TableRows,
        rows: tf.Variable,
        slots: Sequence[tf.Variable],
        step: Any,
    ) -> TableRows:
        updated = self._apply(table.gradients, rows, slots, step)
        with tf.control_dependencies([updated] if updated is not None else []):
            values = rows.read_value()
            after = tuple(slot.read_value() for slot in slots)
        with tf.control_dependencies([values, *after]):
            for variable in (rows, *slots):
                private.destroy(variable)
        return TableRows(table.name, values, after, table.gradients)

    def _start_slot(self, name: str, initial: Any) -> None:
        self.slot_initial_values[name] = constant_of(
            initial, f"'{name}' of {self._name}"
        )
