"""The own update of any tf.compat.v1 optimizer, on rows of tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.training import private
from tfembed.dynamic_embedding.training.families.variable_rows import (
    VariableRows,
)

__all__ = ["V1Rows"]


class V1Rows(VariableRows):
    """Moves rows by `_resource_apply_dense` of a tf.compat.v1 optimizer.

    Args:
      opt: a `tf.compat.v1.train.Optimizer`.

    Raises:
      tfembed.errors.UnsupportedError: it moves no single rows.
    """

    def rule_text(self) -> str:
        """The optimizer's class and its numbers."""
        options = private.v1_options(self._opt)
        words = [f"{name}={value}" for name, value in options.items()]
        return " ".join([f"v1.{self._name}", *words])

    def prepare(self, variable: tf.Variable) -> None:
        """Makes powers of beta and the like, for such a variable."""
        private.v1_create_state(self._twin, variable)

    def finish(self) -> None:
        """Ends a step in which no dense variable moved."""
        private.v1_finish(self._twin)

    def _new_twin(
        self, opt: Any, start_slot: Callable[[str, Any], None]
    ) -> Any:
        return private.v1_twin(opt, start_slot)

    def _eager_copy(self, opt: Any) -> Any:
        return private.v1_eager_copy(opt)

    def _begin(self, variables: Sequence[tf.Variable]) -> None:
        del variables
        private.v1_begin(self._twin)

    def _update(self, gradients: Any, rows: tf.Variable, step: None) -> Any:
        return private.v1_update(self._twin, gradients, rows)

    def _end(self, step: None) -> None:
        """What a step does once, it does in `finish` or for dense variables."""
        del step  # AutoGraph cannot parse a method that is its docstring alone.
