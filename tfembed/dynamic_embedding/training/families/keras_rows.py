"""The own update of any Keras optimizer, on rows of tables."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.training import private
from tfembed.dynamic_embedding.training.row_update import (
    RowRule,
    RowValues,
    TableRows,
    check_row_local,
    constant_of,
)

__all__ = ["KerasRows"]

# Why optimizers that could be tried on rows by mistake are not.
_REASONS = {
    "Adafactor": "keeps means over whole rows and columns as its slots",
    "Lamb": "scales its step by the norms of the whole variable",
    "LossScaleOptimizer": "wraps another one; give that one, with "
    "`loss_scale_factor` where gradients are scaled",
    "Muon": "orthogonalizes the gradient of the whole variable",
}

_SKIPPED_CONFIG = ("name", "learning_rate", "is_legacy_optimizer")


class KerasRows(RowRule):
    """Moves rows by `update_step` of a Keras optimizer.

    A second optimizer of the same class and configuration is built on one
    stand-in variable, `RowValues`, which each table's rows and slots are put
    into in turn. It reads the step count of the first. Weight decay is on the
    rows of the step; gradients come clipped.

    Args:
      opt: a Keras 3 optimizer, or one of tf_keras.

    Raises:
      tfembed.errors.UnsupportedError: it moves no single rows.
    """

    def __init__(self, opt: Any) -> None:
        self._opt = opt
        self._name = type(opt).__name__
        if self._name in _REASONS:
            raise errors.UnsupportedError(
                f"{self._name} cannot train tables: it {_REASONS[self._name]}."
            )
        if private.keras_overrides_whole_steps(opt):
            raise errors.UnsupportedError(
                f"{type(opt).__module__}.{self._name} cannot train tables: its "
                "steps do more than `update_step`. Use the one of Keras 3."
            )
        self._lock = threading.RLock()
        self._rows = RowValues(tf.zeros([2, 2]), "rows")
        self._slots: dict[str, RowValues] = {}
        self._rate: Any = None  # Of the step under way.
        self.slot_initial_values = {}
        self._twin = self._build_twin()
        self._text = self._describe()
        self.state = private.keras_state(self._twin)
        self._check_state()
        check_row_local(self, self._name)

    def rule_text(self) -> str:
        """The optimizer's class and configuration."""
        return self._text

    def update(
        self, tables: Sequence[TableRows], rate: tf.Tensor | None
    ) -> list[TableRows]:
        """See `RowRule.update`."""
        with self._lock:  # The stand-ins are one set.
            self._rate = rate
            results: list[TableRows] = []

            def mover(table: TableRows) -> Callable[[], None]:
                return lambda: results.append(self._move(table, rate))

            moves = [mover(table) for table in tables]
            private.keras_update(self._twin, self._rows, moves, rate)
            self._rate = None
            for values in (self._rows, *self._slots.values()):
                values.clear()
            return results

    def _move(self, table: TableRows, rate: tf.Tensor | None) -> TableRows:
        if table.values.shape[0] == 0:  # Which not all of Keras' ops take.
            one = _each(table, lambda rows: tf.pad(rows, [[0, 1], [0, 0]]))
            return _each(self._move(one, rate), lambda rows: rows[:0])
        self._rows.rows = self._decayed(table, rate)
        for slot, rows in zip(self._slots.values(), table.slots, strict=True):
            slot.rows = rows
        arguments = [table.gradients, self._rows]
        if _takes_rate(self._twin.update_step):
            arguments.append(rate)
        self._twin.update_step(*arguments)
        slots = tuple(slot.rows for slot in self._slots.values())
        return TableRows(table.name, self._rows.rows, slots, table.gradients)

    def _decayed(self, table: TableRows, rate: tf.Tensor | None) -> tf.Tensor:
        decay = self._opt.weight_decay
        if not decay or not private.keras_decays(
            self._opt, RowValues(table.values, table.name)
        ):
            return table.values
        return table.values - table.values * decay * rate

    def _build_twin(self) -> Any:
        cls = type(self._opt)
        members = {
            "add_variable_from_reference": self._add_slot,
            "iterations": property(lambda twin: self._opt.iterations),
            "learning_rate": property(lambda twin: self._rate),
        }
        twin_class: Any = type(self._name, (private.KerasTwin, cls), members)
        try:
            # The twin's own rate is never read; any number will do here.
            config = {**self._opt.get_config(), "learning_rate": 0.001}
            twin = twin_class.from_config(config)
            twin.build([self._rows])
        except Exception as error:  # Whatever foreign code raises.
            raise errors.UnsupportedError(
                f"{self._name} cannot train tables: it does not build on rows "
                f"({type(error).__name__}: {error})."
            ) from error
        return twin

    def _add_slot(
        self,
        reference: Any = None,
        name: str = "slot",
        *args: Any,
        **options: Any,
    ) -> RowValues:
        """Stands for `add_variable_from_reference` of both Keras families."""
        del args
        name = options.get("variable_name", name)
        if options.get("shape") is not None:
            raise errors.UnsupportedError(
                f"the slot '{name}' has not the variable's shape"
            )
        start = options.get("initializer", options.get("initial_value"))
        if start is None or start == "zeros":
            start = 0.0
        elif callable(start):
            start = start([2, 2])
        initial = constant_of(start, f"'{name}' of {self._name}")
        self.slot_initial_values[name] = initial
        slot = RowValues(tf.fill([2, 2], initial), name)
        self._slots[name] = slot
        return slot

    def _describe(self) -> str:
        words = [
            f"{key}={str(value).replace(' ', '')}"
            for key, value in self._opt.get_config().items()
            if key not in _SKIPPED_CONFIG and value is not None
        ]
        return " ".join([f"keras.{self._name}", *words])

    def _check_state(self) -> None:
        for variable in self.state:
            if variable.shape.rank:
                raise errors.UnsupportedError(
                    f"{self._name} cannot train tables: it keeps "
                    f"'{variable.name}' of shape {variable.shape}; slots must "
                    "have the variable's shape."
                )


def _each(
    table: TableRows, function: Callable[[tf.Tensor], tf.Tensor]
) -> TableRows:
    return TableRows(
        table.name,
        function(table.values),
        tuple(function(slot) for slot in table.slots),
        function(table.gradients),
    )


def _takes_rate(update_step: Callable[..., Any]) -> bool:
    """Keras 3 hands the learning rate to `update_step`; tf_keras does not."""
    return "learning_rate" in inspect.signature(update_step).parameters
