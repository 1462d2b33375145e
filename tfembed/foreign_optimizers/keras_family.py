"""An optimizer of Keras 3 or tf_keras, wrapped."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.foreign_optimizers import private
from tfembed.foreign_optimizers.rules import (
    FusedRule,
    RowRule,
    RowValues,
    TableRows,
    adagrad_rule,
    adam_rule,
    check_row_local,
    check_unchanged,
    constant_of,
    ftrl_rule,
)
from tfembed.foreign_optimizers.table_gradients import GradientClipping
from tfembed.foreign_optimizers.wrapped_optimizer import (
    WrappedOptimizer,
    lasting_name,
)
from tfembed.ops.private import converted, number_tensor
from tfembed.optimizers.interface import is_schedule

__all__ = ["KerasRows", "WrappedKeras", "fused_rule", "options_without_rule"]


# The reasons why some optimizers with an `update_step` cannot train rows.
_REASONS = {
    "Adafactor": "keeps means over whole rows and columns as its slots",
    "Lamb": "scales its step by the norms of the whole variable",
    "LossScaleOptimizer": "wraps another one; give that one, and wrap the "
    "DynamicEmbeddingOptimizer that you get",
    "Muon": "orthogonalizes the gradient of the whole variable",
}

_SKIPPED_CONFIG = ("name", "learning_rate", "is_legacy_optimizer")


class KerasRows(RowRule):
    """Moves rows by `update_step` of a Keras optimizer.

    A second optimizer of the same class and configuration is built on one
    stand-in variable, a `RowValues`, which receives each table's rows and
    slots in turn. It uses the step count of the first optimizer. Weight decay
    affects only the rows of the step; gradients are clipped before.

    Args:
      opt: a Keras 3 optimizer, or one of tf_keras.

    Raises:
      tfembed.errors.UnsupportedError: the optimizer cannot update single rows.
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
                "steps do more than `update_step`. Use Keras 3's optimizer."
            )
        self._lock = threading.RLock()
        self._rows = RowValues(tf.zeros([2, 2]), "rows")
        self._slots: dict[str, RowValues] = {}
        self._rate: Any = None  # The rate of the current step.
        self.slot_initial_values = {}
        self._twin = self._build_twin()
        self._text = self._describe()
        self.state = private.keras_state(self._twin)
        self._check_state()
        check_row_local(self, self._name)

    def rule_text(self) -> str:
        """The class and configuration of the optimizer."""
        return self._text

    def update(
        self, tables: Sequence[TableRows], rate: tf.Tensor | None
    ) -> list[TableRows]:
        """See `RowRule.update`."""
        with self._lock:  # Threads share the stand-ins.
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
        # Some of Keras' ops refuse empty tensors.
        if table.values.shape[0] == 0:
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
            # The twin never reads its own rate; any number is right.
            config = {**self._opt.get_config(), "learning_rate": 0.001}
            twin = twin_class.from_config(config)
            twin.build([self._rows])
        except Exception as error:  # Third-party code may raise anything.
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
        """Replaces `add_variable_from_reference` of both Keras families."""
        del args
        name = options.get("variable_name", name)
        if options.get("shape") is not None:
            raise errors.UnsupportedError(
                f"the slot '{name}' does not have the variable's shape"
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
    """Whether `update_step` takes the learning rate, as in Keras 3.

    It comes third, whatever the parameter is called.
    """
    try:
        inspect.signature(update_step).bind(None, None, None)
    except TypeError:
        return False
    return True


def fused_rule(optimizer: Any) -> FusedRule | None:
    """Returns the rule that updates rows as `optimizer` updates a variable.

      SGD      w -= lr g
      Adagrad  a += g^2; w -= lr g / sqrt(a + epsilon)
      Adam     m, v as usual; w -= lr sqrt(1 - b2^t) / (1 - b1^t) m
                                   / (sqrt(v) + epsilon)
      Ftrl     as tfembed.optimizers.FTRL

    t counts the optimizer's steps. Rows that were not looked up do not change,
    nor do their Adam moments (in Keras the moments of all rows decay).

    Args:
      optimizer: an optimizer of Keras 3 or tf_keras.

    Returns:
      None for other classes, including subclasses of these, and for SGD with
      momentum, Adam with amsgrad, Ftrl with l2 shrinkage, an accumulator with
      initial value 0, and weight decay.
    """
    known = _rule_of_class(optimizer)
    if known is None or optimizer.weight_decay:
        return None
    return known(optimizer)


def _rule_of_class(optimizer: Any) -> Callable[[Any], FusedRule | None] | None:
    cls = type(optimizer)
    if cls.__module__.partition(".")[0] not in ("keras", "tf_keras"):
        return None
    # The legacy optimizers of tf_keras have the same names, and other options.
    if private.base_of(optimizer) is not None:
        return None
    return _RULES.get(cls.__name__)


# The options that, if set, keep an optimizer from the rule of its class.
_OPTIONS_WITHOUT_RULE = (
    "weight_decay",
    "momentum",
    "amsgrad",
    "l2_shrinkage_regularization_strength",
)


def options_without_rule(optimizer: Any) -> list[str]:
    """Returns the options that keep an optimizer from the rule of its class.

    Args:
      optimizer: an optimizer of any library.

    Returns:
      The names; empty if it has a rule, or if its class has none.
    """
    if _rule_of_class(optimizer) is None or fused_rule(optimizer):
        return []
    options = [n for n in _OPTIONS_WITHOUT_RULE if getattr(optimizer, n, None)]
    return options or ["initial_accumulator_value"]  # Its value is 0.


def _sgd(optimizer: Any) -> FusedRule | None:
    return None if optimizer.momentum else FusedRule(optimizers.SGD())


def _adagrad(optimizer: Any) -> FusedRule | None:
    # The rule has no epsilon; adding it to the initial accumulator is the
    # same: sqrt((a0 + epsilon) + sum g^2) = sqrt((a0 + sum g^2) + epsilon).
    start = optimizer.initial_accumulator_value + optimizer.epsilon
    return adagrad_rule(start)


def _adam(optimizer: Any) -> FusedRule | None:
    if optimizer.amsgrad:
        return None
    labels = ("momentum", "velocity")
    return adam_rule(
        optimizer.beta_1, optimizer.beta_2, optimizer.epsilon, labels
    )


def _ftrl(optimizer: Any) -> FusedRule | None:
    if optimizer.l2_shrinkage_regularization_strength:
        return None
    names = (
        "learning_rate_power",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "beta",
        "initial_accumulator_value",
    )
    options = {name: getattr(optimizer, name) for name in names}
    return ftrl_rule(options, ("accumulator", "linear"))


_RULES: dict[str, Callable[[Any], FusedRule | None]] = {
    "SGD": _sgd,
    "Adagrad": _adagrad,
    "Adam": _adam,
    "Ftrl": _ftrl,
}

# Options that make Keras update all rows of a variable, and alternatives.
_WHOLE_VARIABLE_OPTIONS = {
    "use_ema": "averages move for all rows in each step; leave it unset, and "
    "average rows of checkpoints",
    "gradient_accumulation_steps": "rows of earlier batches would have to be "
    "kept for the update; leave it unset, and give `apply_gradients` the "
    "gradients of several batches at once",
}


class WrappedKeras(WrappedOptimizer):
    """An optimizer of Keras 3 or tf_keras."""

    def __init__(self, opt: Any) -> None:
        for option, reason in _WHOLE_VARIABLE_OPTIONS.items():
            if getattr(opt, option, None):
                raise errors.UnsupportedError(
                    f"{type(opt).__name__}({option}={getattr(opt, option)!r}) "
                    f"cannot train tables: {reason}."
                )
        self._opt = opt
        self.rule = fused_rule(opt) or KerasRows(opt)
        self._checked = _numbers(opt)  # Those that the rule is known to have.
        self.name = lasting_name(opt, opt.name)
        self.iterations = opt.iterations

    @property
    def clipping(self) -> GradientClipping | None:
        """The clipping options of the optimizer, at present."""
        opt = self._opt
        by_norm = opt.clipnorm or opt.global_clipnorm
        loss_scale = getattr(opt, "loss_scale_factor", None)
        if not (by_norm or loss_scale or opt.clipvalue):
            return None
        return GradientClipping(
            loss_scale=loss_scale,
            clipvalue=None if by_norm else opt.clipvalue,
            clipnorm=opt.clipnorm,
            global_clipnorm=opt.global_clipnorm,
        )

    def check_rule(self) -> None:
        """Raises an error if options have changed since the rule was made."""
        numbers = _numbers(self._opt)
        if numbers != self._checked and isinstance(self.rule, FusedRule):
            now = fused_rule(self._opt)
            check_unchanged(self.rule, now, self._opt, _numbers)
        self._checked = numbers

    def learning_rate(self) -> tf.Tensor:
        """The learning rate of the next step."""
        rate = self._opt.learning_rate
        schedule = private.keras_schedule(self._opt)
        if callable(schedule) and is_schedule(schedule):
            # The rate variable of tf_keras lags by a step.
            rate = converted(schedule)(self.iterations)
        return tf.cast(number_tensor(rate), tf.float32)

    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Updates dense variables and increments the step."""
        self._opt.apply_gradients(pairs)
        return []

    def finish(self) -> None:
        """Increments the step."""
        self.iterations.assign_add(1)


def _numbers(opt: Any) -> dict[str, Any]:
    """Returns the Python numbers of a Keras optimizer's configuration."""
    return {
        name: value
        for name, value in sorted(vars(opt).items())
        if isinstance(value, (bool, int, float))
        and not name.startswith("_")
        and name != "built"
    }
