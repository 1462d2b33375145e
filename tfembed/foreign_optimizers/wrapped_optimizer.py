"""The interface of the optimizers that `DynamicEmbeddingOptimizer` wraps."""

from __future__ import annotations

import abc
import inspect
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.foreign_optimizers import private
from tfembed.foreign_optimizers.rules import FusedRule, RowRule
from tfembed.foreign_optimizers.table_gradients import GradientClipping
from tfembed.ops.private import converted, number_tensor
from tfembed.optimizers.interface import is_schedule

__all__ = [
    "WrappedDescription",
    "WrappedOptimizer",
    "counter",
    "lasting_name",
]

# Keras 3.12's names of optimizers that are not the class name in lower case.
# Newer versions separate words: "adam_w", "rm_sprop".
_NAMES = {"SGD": "SGD"}


class WrappedOptimizer(abc.ABC):
    """An optimizer of one family.

    Attributes:
      rule: the rule that updates rows of tables.
      name: the prefix of the names of slots.
      iterations: the variable that counts steps.
      moves_dense: whether the optimizer can update dense variables too.
    """

    rule: FusedRule | RowRule
    name: str
    iterations: Any
    moves_dense = True

    @property
    def clipping(self) -> GradientClipping | None:
        """The clipping and unscaling of gradients, or None."""
        return None

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss, by which gradients are divided; None: 1."""
        return self.clipping.loss_scale if self.clipping else None

    def check_rule(self) -> None:  # Most need no check.
        """Raises an error if `rule` no longer matches the optimizer."""
        return  # AutoGraph cannot convert a method without a statement.

    @abc.abstractmethod
    def learning_rate(self) -> tf.Tensor:
        """The learning rate of the next step."""

    @abc.abstractmethod
    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Ends a step: updates dense variables and increments the step.

        Returns:
          The ops that a session must run, in a TensorFlow 1 graph.
        """

    @abc.abstractmethod
    def finish(self) -> None:
        """Ends a step without dense variables: increments the step."""


def counter(name: str) -> tf.Variable:
    """Makes an int64 variable with value 0, the same for all replicas."""
    with tf.init_scope():
        return tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            # In TensorFlow 1 graphs, which share by name, users cannot take
            # this name.
            name=f"dynamic_embedding_optimizer/{name}",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )


def lasting_name(opt: Any, name: str) -> str:
    """Returns a Keras optimizer's name for files and checkpoints, unnumbered.

    Keras numbers optimizers that were given no name ("adagrad_2" is the third
    of its class in the process); those of its own classes only from 3.15 on.
    The result has no number, and Keras' own classes have the names of 3.12. A
    given name is unchanged.

    Args:
      opt: an optimizer of Keras 3, or of tf_keras.
      name: the present name of the optimizer.
    """
    cls = type(opt)
    counted = re.fullmatch(r"(.+)_(\d+)", name)
    default = inspect.signature(cls).parameters.get("name")
    is_named = default is not None and isinstance(default.default, str)
    if counted is not None and _is_after(counted[1], cls):
        plain, number = counted[1], int(counted[2])
        if not _was_numbered(cls, plain, number, is_named):
            return name
    elif is_named or not _is_after(name, cls):
        return name
    else:
        plain = name
    maker = next(one for one in cls.__mro__ if "__init__" in vars(one))
    is_own = _is_of_keras_3(maker) and not maker.__name__.endswith("Optimizer")
    if is_named or not is_own:
        return plain
    return _NAMES.get(maker.__name__, maker.__name__.lower())


def _was_numbered(cls: type, plain: str, number: int, is_named: bool) -> bool:
    """Whether Keras made a name from the class' name, `plain`, and a number."""
    if any(_is_of_keras_3(one) for one in cls.__mro__):
        return number < private.keras_numbered(plain)
    return not is_named  # tf_keras numbers all default names.


def _is_after(name: str, cls: type) -> bool:
    """Whether `name` is the class' name, with words separated or not."""
    plain, own = (re.sub(r"[\W_]", "", x) for x in (name, cls.__name__))
    return plain.lower() == own.lower()


def _is_of_keras_3(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "keras"


class WrappedDescription(WrappedOptimizer):
    """A description of `tfembed.optimizers`, which trains only tables."""

    moves_dense = False

    def __init__(self, opt: optimizers.Optimizer) -> None:
        if opt.learning_rate is None:
            raise errors.ArgumentError(
                f"{type(opt).__name__}(learning_rate=None) takes the rate of a "
                "Keras model's optimizer, which does not exist here. Give a "
                "number, a variable, a function or a schedule; or give "
                "DynamicEmbeddingOptimizer an optimizer of Keras."
            )
        self._opt = opt
        self.rule = FusedRule(opt)
        self.name = type(opt).__name__
        self.iterations = counter("iterations")

    @property
    def clipping(self) -> GradientClipping | None:
        """The norms that limit the step's gradients; None: no limit.

        The rule itself clips elements.
        """
        opt = self._opt
        if opt.clipnorm is None and opt.global_clipnorm is None:
            return None
        return GradientClipping(
            clipnorm=opt.clipnorm, global_clipnorm=opt.global_clipnorm
        )

    def learning_rate(self) -> tf.Tensor:
        """The learning rate of the next step."""
        rate: Any = self._opt.learning_rate
        if callable(rate):
            step = (self.iterations,) if is_schedule(rate) else ()
            rate = converted(rate)(*step)
        return tf.cast(number_tensor(rate), tf.float32)

    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Raises an error: a description trains only tables."""
        raise errors.UnsupportedError(
            f"{self.name} of tfembed.optimizers trains only tables; got "
            f"{pairs[0][1]!r}. Give DynamicEmbeddingOptimizer a Keras "
            "optimizer, or dense variables an optimizer of their own."
        )

    def finish(self) -> None:
        """Increments the step."""
        self.iterations.assign_add(1)
