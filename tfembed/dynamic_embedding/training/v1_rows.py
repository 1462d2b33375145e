"""The own update of any tf.compat.v1 optimizer, on rows of tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.training import private
from tfembed.dynamic_embedding.training.graph_place import current_graph
from tfembed.dynamic_embedding.training.row_rule import (
    RowRule,
    TableRows,
    check_row_local,
    constant_of,
)

__all__ = ["V1Rows"]


class V1Rows(RowRule):
    """Moves rows by `_resource_apply_dense` of a tf.compat.v1 optimizer.

    Rows and slots are put into variables that live for one update. The
    learning rate is the optimizer's own.

    Args:
      opt: a `tf.compat.v1.train.Optimizer`.

    Raises:
      tfembed.errors.UnsupportedError: it moves no single rows.
    """

    def __init__(self, opt: Any) -> None:
        self._opt = opt
        self._name = type(opt).__name__
        self._lock = threading.RLock()
        self.slot_initial_values = {}
        self.state = []  # `opt` is saved with what it keeps.
        if current_graph() is None:
            self._twin = self._twin_of(opt, self._start_slot)
            check_row_local(self, self._name)
        else:  # Nothing can be tried there before a session runs.
            with private.eager_mode():
                tried = V1Rows(private.v1_eager_copy(opt))
            self.slot_initial_values = tried.slot_initial_values
            self._twin = self._twin_of(opt, lambda name, initial: None)

    def rule_text(self) -> str:
        """The optimizer's class and its numbers."""
        options = private.v1_options(self._opt)
        words = [f"{name}={value}" for name, value in options.items()]
        return " ".join([f"v1.{self._name}", *words])

    def update(
        self, tables: Sequence[TableRows], rate: tf.Tensor | None
    ) -> list[TableRows]:
        """See `RowRule.update`."""
        del rate
        with self._lock:  # The twin has the slots of one table at a time.
            private.v1_begin(self._twin)
            return [self._move(table) for table in tables]

    def prepare(self, variable: tf.Variable) -> None:
        """Makes what the optimizer keeps beside slots, for such a variable."""
        private.v1_create_state(self._twin, variable)

    def update_variables(
        self, rows: tf.Variable, slots: Sequence[tf.Variable], gradients: Any
    ) -> None:
        """One step on variables that stay, the slots in their order."""
        with self._lock:
            private.v1_begin(self._twin)
            self._twin.slots = dict(zip(self.slot_names, slots, strict=True))
            private.v1_update(self._twin, gradients, rows)
            self._twin.slots = {}

    def finish(self) -> None:
        """Ends a step in which no dense variable moved."""
        private.v1_finish(self._twin)

    def _twin_of(self, opt: Any, start_slot: Callable[[str, Any], None]) -> Any:
        try:
            return private.v1_twin(opt, start_slot)
        except Exception as error:  # Whatever foreign code raises.
            raise errors.UnsupportedError(
                f"{self._name} cannot train tables: it makes no slots for rows "
                f"({type(error).__name__}: {error})."
            ) from error

    def _move(self, table: TableRows) -> TableRows:
        rows = private.local_variable(table.values, table.name)
        slots = {
            name: private.local_variable(slot, f"{table.name}/{name}")
            for name, slot in zip(self.slot_names, table.slots, strict=True)
        }
        self._twin.slots = slots
        updated = private.v1_update(self._twin, table.gradients, rows)
        with tf.control_dependencies([updated] if updated is not None else []):
            values = rows.read_value()
            after = tuple(slot.read_value() for slot in slots.values())
        with tf.control_dependencies([values, *after]):
            for variable in (rows, *slots.values()):
                private.destroy(variable)
        return TableRows(table.name, values, after, table.gradients)

    def _start_slot(self, name: str, initial: Any) -> None:
        self.slot_initial_values[name] = constant_of(
            initial, f"'{name}' of {self._name}"
        )
