"""The own update of any legacy optimizer of Keras, on rows of tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.tensorflow1 import v2_private
from tfembed.dynamic_embedding.training import private
from tfembed.dynamic_embedding.training.families.variable_rows import (
    VariableRows,
)

__all__ = ["V2Rows"]


class V2Rows(VariableRows):
    """Moves rows by `_resource_apply_dense` of an `OptimizerV2`.

    What the optimizer keeps beside slots (Nadam's momentum cache) moves once a
    step, with dense variables or in `finish`; the tables' part of the step sees
    it moved and puts it back.

    Args:
      opt: an `OptimizerV2` of tf_keras, Keras 2 or tensorflow.python.keras.

    Raises:
      tfembed.errors.UnsupportedError: it moves no single rows.
    """

    def __init__(self, opt: Any) -> None:
        options = v2_private.options(opt)
        words = [f"{name}={value}" for name, value in options.items()]
        self._text = " ".join([f"v2.{type(opt).__name__}", *words])
        super().__init__(opt)

    def rule_text(self) -> str:
        """The optimizer's class and its numbers."""
        return self._text

    def prepare(self, variable: tf.Variable) -> None:
        """Nothing: all was made with the twin."""

    def finish(self) -> None:
        """Ends a step in which no dense variable moved."""
        if v2_private.state(self._opt):
            rows = private.local_variable(tf.zeros([1, 1]), "rows")
            v2_private.begin(self._twin, [rows])
            private.destroy(rows)

    def _new_twin(
        self, opt: Any, start_slot: Callable[[str, Any], None]
    ) -> Any:
        return v2_private.twin(opt, start_slot)

    def _eager_copy(self, opt: Any) -> Any:
        return v2_private.eager_copy(opt)

    def _begin(self, variables: Sequence[tf.Variable]) -> tuple[Any, list[Any]]:
        before = [v.read_value() for v in v2_private.state(self._opt)]
        return v2_private.begin(self._twin, variables), before

    def _update(
        self, gradients: Any, rows: tf.Variable, step: tuple[Any, list[Any]]
    ) -> Any:
        return v2_private.update(self._twin, gradients, rows, step[0])

    def _end(self, step: tuple[Any, list[Any]]) -> None:
        state = v2_private.state(self._opt)
        for variable, value in zip(state, step[1], strict=True):
            variable.assign(value)
