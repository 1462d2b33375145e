"""The optimizer of variables that grow with their keys."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.dynamic_embedding.keras_rules import FusedRule, fused_rule
from tfembed.dynamic_embedding.key_use import note_updates
from tfembed.dynamic_embedding.table_update import update_tables
from tfembed.dynamic_embedding.trainable import TrainableWrapper
from tfembed.dynamic_embedding.variable import Variable

__all__ = ["DynamicEmbeddingOptimizer"]

_NONFINITE = ("skip", "refuse", "allow")

TableGradient = tuple[tf.IndexedSlices, Variable]


class DynamicEmbeddingOptimizer(tf.Module):
    """Applies an optimizer to `Variable`s, and to dense variables beside them.

    Over a Keras 3 optimizer it is one itself, so that `Model.compile` takes it
    (`tfembed.dynamic_embedding.keras`).

    In one step the gradients of a key are summed over all its occurrences and
    all lookups, then applied once. The update is fused: rows and slots move in
    place, atomically per key, and keys that are not there yet are inserted. All
    tables are checked before any is changed.

    Example:
      optimizer = DynamicEmbeddingOptimizer(tf.keras.optimizers.Adam(1e-3))
      with tf.GradientTape() as tape:
          rows = embedding_lookup(users, ids, name="users")
          loss = tf.reduce_mean(dense(rows) ** 2)
      variables = [users, *dense.trainable_variables]
      optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    Args:
      opt: an optimizer of `tfembed.optimizers`, or a Keras 3 SGD without
        momentum, Adagrad, Adam or Ftrl (`keras_rules.fused_rule` says what it
        does to a row). Dense variables are left to the Keras optimizer itself
        and need one.
      bp_v2: accepted for TFRA's sake; updates are atomic either way.
      synchronous: False.
      nonfinite: what to do with a key whose summed gradient is not finite:
        "skip" it, "refuse" the step (InvalidArgumentError before anything is
        changed, dense variables included), or "allow" it.

    Attributes:
      nonfinite_rows: int64 variable, the keys with such a gradient so far.

    Raises:
      tfembed.errors.UnsupportedError: another optimizer, or `synchronous`.
      tfembed.errors.ArgumentError: an unknown `nonfinite`.
    """

    def __new__(cls, opt: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Puts a Keras 3 optimizer's engine behind Keras' own interface."""
        engine = super().__new__(cls)
        keras = sys.modules.get("keras")
        if keras is None or not isinstance(opt, keras.optimizers.Optimizer):
            return engine
        from tfembed.dynamic_embedding.keras.optimizer import (
            KerasTableOptimizer,
        )

        cls.__init__(engine, opt, *args, **kwargs)
        return KerasTableOptimizer(engine)

    def __init__(
        self,
        opt: Any,
        bp_v2: bool = False,
        synchronous: bool = False,
        *,
        nonfinite: str = "skip",
    ) -> None:
        super().__init__(name="dynamic_embedding_optimizer")
        if synchronous:
            raise errors.UnsupportedError(
                "`synchronous=True` (Horovod) is not in this release."
            )
        if nonfinite not in _NONFINITE:
            raise errors.ArgumentError(
                f"`nonfinite` must be one of {_NONFINITE}; got {nonfinite!r}."
            )
        self.bp_v2 = bp_v2
        self._nonfinite = nonfinite
        self._opt = opt
        self._is_keras = not isinstance(opt, optimizers.Optimizer)
        self._rule = fused_rule(opt) if self._is_keras else FusedRule(opt)
        with tf.init_scope():
            self.nonfinite_rows = tf.Variable(
                0, dtype=tf.int64, trainable=False, name="nonfinite_rows"
            )
            self._steps = None
            if not self._is_keras:
                self._steps = tf.Variable(
                    0, dtype=tf.int64, trainable=False, name="iterations"
                )

    @property
    def optimizer(self) -> Any:
        """What it was made of."""
        return self._opt

    def options(self) -> dict[str, Any]:
        """The other arguments that it was made of."""
        return {"bp_v2": self.bp_v2, "nonfinite": self._nonfinite}

    @property
    def iterations(self) -> Any:
        """The variable that counts steps; Keras' own for a Keras optimizer."""
        return self._opt.iterations if self._is_keras else self._steps

    @property
    def learning_rate(self) -> tf.Tensor:
        """The learning rate of the next step."""
        rate = self._opt.learning_rate
        if callable(rate) and not self._is_keras:
            rate = rate(self.iterations) if _takes_step(rate) else rate()
        return tf.cast(tf.convert_to_tensor(rate), tf.float32)

    def minimize(
        self,
        loss: Any,
        var_list: Any,
        grad_loss: Any = None,
        name: str | None = None,
        tape: tf.GradientTape | None = None,
    ) -> tf.Tensor:
        """Computes gradients and applies them.

        Args:
          loss: a function without arguments; or, with `tape`, its result.
          var_list: variables, or a function that returns them and is called
            after `loss`.
          grad_loss: gradient of the loss itself; None: 1.
          name: of the step.
          tape: what recorded `loss`.

        Returns:
          The loss.
        """
        if callable(loss):
            with tape or tf.GradientTape() as tape:
                value = loss()
        elif tape is None:
            raise errors.ArgumentError(
                "`loss` must be a function where no `tape` is given; got "
                f"{type(loss).__name__}."
            )
        else:
            value = loss
        variables = list(var_list() if callable(var_list) else var_list)
        gradients = tape.gradient(value, variables, output_gradients=grad_loss)
        self.apply_gradients(zip(gradients, variables, strict=True), name=name)
        return value

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], name: str | None = None
    ) -> None:
        """Takes one step.

        Args:
          grads_and_vars: pairs of a gradient and its `Variable`,
            `TrainableWrapper` or dense variable. Pairs with None are left out.
          name: of the step.

        Raises:
          tfembed.errors.ArgumentError: no gradient at all, or a table's that is
            no IndexedSlices.
          tfembed.errors.UnsupportedError: dense variables without a Keras
            optimizer, or a strategy with several replicas.
        """
        sparse, dense = self._sort(grads_and_vars)
        with tf.name_scope(name or "apply_gradients"):
            self.attach(params for _, params in sparse)
        finite = []
        if self._nonfinite == "refuse":
            finite = [_check_finite(gradient) for gradient, _ in dense]
        if sparse:
            with tf.control_dependencies(finite):
                self._update_tables(sparse)
        if dense:
            self._opt.apply_gradients(dense)  # Counts the step too.
        else:
            self.iterations.assign_add(1)

    def attach(self, variables: Iterable[Variable | TrainableWrapper]) -> None:
        """Lays this optimizer's slots out in tables; once each is enough."""
        with tf.init_scope():
            for variable in variables:
                _variable_of(variable).table.attach(self._rule.optimizer)

    def _update_tables(self, gradients: list[TableGradient]) -> None:
        step = tf.cast(tf.convert_to_tensor(self.iterations), tf.int64) + 1
        count = update_tables(
            gradients,
            rule=self._rule.optimizer.rule_text(),
            learning_rate=self._rule.rate(self.learning_rate, step),
            nonfinite=self._nonfinite,
        )
        self.nonfinite_rows.assign_add(count)
        note_updates(gradients)

    def _sort(
        self, grads_and_vars: Iterable[tuple[Any, Any]]
    ) -> tuple[list[TableGradient], list[tuple[Any, Any]]]:
        """The gradients of tables and those of dense variables."""
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise errors.UnsupportedError(
                "DynamicEmbeddingOptimizer does not run on several replicas in "
                "this release; use tfembed.TPUEmbedding there."
            )
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            raise errors.ArgumentError(
                "No variable has a gradient. Look rows up, and compute the loss, "
                "inside the tape."
            )
        sparse, dense = [], []
        for gradient, variable in pairs:
            if isinstance(variable, (Variable, TrainableWrapper)):
                sparse.append(_table_gradient(gradient, variable))
            else:
                dense.append((gradient, variable))
        if dense and not self._is_keras:
            raise errors.UnsupportedError(
                f"{type(self._opt).__name__} of tfembed.optimizers moves tables "
                f"only; got {dense[0][1]!r}. Give DynamicEmbeddingOptimizer a "
                "Keras optimizer, or dense variables an optimizer of their own."
            )
        return sparse, dense


def _variable_of(variable: Variable | TrainableWrapper) -> Variable:
    """The variable that holds the rows."""
    return variable if isinstance(variable, Variable) else variable.params


def _table_gradient(
    gradient: Any, variable: Variable | TrainableWrapper
) -> TableGradient:
    params = _variable_of(variable)
    if not isinstance(gradient, tf.IndexedSlices):
        raise errors.ArgumentError(
            f"The gradient of '{params.name}' must be tf.IndexedSlices by key, as "
            f"`tape.gradient` gives; got {type(gradient).__name__}."
        )
    return gradient, params


def _check_finite(gradient: Any) -> tf.Tensor:
    values = (
        gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    )
    return tf.debugging.check_numerics(
        values,
        "A dense variable's gradient is not finite, and nonfinite='refuse'",
    )


def _takes_step(rate: Callable[..., Any]) -> bool:
    """Whether a learning rate is a schedule: a function of the step."""
    parameters = inspect.signature(rate).parameters.values()
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    return any(
        p.kind in positional and p.default is p.empty for p in parameters
    )
