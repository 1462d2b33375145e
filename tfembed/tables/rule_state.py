"""The numbers of a table's update rule that all of its rows share."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["RuleState"]


class RuleState:
    """Variables of an update rule besides slots, for the files of its table.

    Nadam has one, the product of its momenta; a schedule has a count of steps.
    A file may be restored before an optimizer trains the table: then its
    values wait for the variables.

    Args:
      table: the name of the table, for warnings.
    """

    def __init__(self, table: str) -> None:
        self._table = table
        self._variables: dict[str, tf.Variable] = {}
        self._initial_values: dict[str, Any] = {}
        self._waiting: dict[str, Any] = {}
        self._is_missing = False  # The file had slots, and no state.

    def values(self) -> dict[str, tf.Tensor]:
        """Returns the present values by name, for a file."""
        waiting = {
            name: tf.constant(value) for name, value in self._waiting.items()
        }
        bound = {
            name: variable.read_value()
            for name, variable in self._variables.items()
        }
        return {**waiting, **bound}

    def bind(self, variables: Mapping[str, tf.Variable]) -> None:
        """Takes the variables of the rule that trains the table from now on.

        They get the values of the variables that were bound before, which go
        on with the slots, or of the file that was restored; variables that are
        bound already stay as they are. Call it in eager mode.

        Args:
          variables: new variables, with their initial values, by name.
        """
        new = {
            name: variable
            for name, variable in variables.items()
            if self._variables.get(name) is not variable
        }
        if not new:
            return
        before = {name: one.numpy() for name, one in self._variables.items()}
        self._initial_values = {
            name: variable.numpy() for name, variable in variables.items()
        }
        self._variables = dict(variables)
        self._assign({**self._waiting, **before}, new)
        self._waiting = {}

    def restore(self, values: Mapping[str, Any], *, is_trained: bool) -> None:
        """Takes the values of a file.

        Args:
          values: numbers by name.
          is_trained: whether the table in the file was trained by a rule.
        """
        self._waiting = {n: np.asarray(value) for n, value in values.items()}
        self._is_missing = is_trained
        if not self._variables:
            return
        for name, initial in self._initial_values.items():
            self._variables[name].assign(initial)
        self._assign(self._waiting, self._variables)
        self._waiting = {}

    def clear(self) -> None:
        """Forgets all: the slots of the rule were removed."""
        self._variables, self._initial_values, self._waiting = {}, {}, {}
        self._is_missing = False

    def _assign(
        self, values: Mapping[str, Any], variables: Mapping[str, tf.Variable]
    ) -> None:
        missing = []
        for name, variable in variables.items():
            value = values.get(name)
            if value is not None and value.shape == variable.shape:
                variable.assign(tf.cast(value, variable.dtype))
            elif (variable.numpy() == self._initial_values[name]).all():
                missing.append(variable.name)
        if missing and self._is_missing:
            warnings.warn(
                f"The file of table '{self._table}' has slots, and no {missing} "
                "of their update rule: an earlier release wrote it. They begin "
                "anew, and the next steps differ from those of the training "
                "that wrote the file.",
                stacklevel=2,
            )
        self._is_missing = False
