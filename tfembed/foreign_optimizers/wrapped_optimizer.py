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

# Keras 3.12's names of its own optimizers, where that is not the class in lower
# case. Newer ones put words apart: "adam_w", "rm_sprop".
_NAMES = {"SGD": "SGD"}


class WrappedOptimizer(abc.ABC):
    """An optimizer of one family.

    Attributes:
      rule: how it moves rows of tables.
      name: what slots are called after.
      iterations: variable that counts steps.
      moves_dense: whether it moves dense variables too.
    """

    rule: FusedRule | RowRule
    name: str
    iterations: Any
    moves_dense = True

    @property
    def clipping(self) -> GradientClipping | None:
        """How gradients are clipped and unscaled before the update, if they are."""
        return None

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss, by which gradients are divided; None: 1."""
        return self.clipping.loss_scale if self.clipping else None

    def check_rule(self) -> None:  # Most need none.
        """Refuses a `rule` that is no longer the optimizer's."""
        return  # AutoGraph cannot convert a method without a statement.

    @abc.abstractmethod
    def learning_rate(self) -> tf.Tensor:
        """The learning rate of the next step."""

    @abc.abstractmethod
    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Ends a step: moves dense variables and counts the step.

        Returns:
          What a session must run for it, in a graph of TensorFlow 1.
        """

    @abc.abstractmethod
    def finish(self) -> None:
        """Ends a step without dense variables: counts it."""


def counter(name: str) -> tf.Variable:
    """An int64 variable that begins at 0, one for all replicas."""
    with tf.init_scope():
        return tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            # Where names are all, in graphs of TensorFlow 1, none of a user's.
            name=f"dynamic_embedding_optimizer/{name}",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )


def lasting_name(opt: Any, name: str) -> str:
    """The name of a Keras optimizer in files and checkpoints, without counters.

    Keras numbers the optimizers of a class that were given no name ("adagrad_2"
    for the third in the process), those of its own from 3.15 on. The number is
    left out, and Keras' own are called as in 3.12. A name that was given stays.

    Args:
      opt: an optimizer of Keras 3, or of tf_keras.
      name: what it is called.
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
    """Whether Keras made `plain` and a number of the class' name."""
    if any(_is_of_keras_3(one) for one in cls.__mro__):
        return number < private.keras_numbered(plain)
    return not is_named  # Of tf_keras, which numbers what has no name.


def _is_after(name: str, cls: type) -> bool:
    """Whether `name` is the class', however Keras puts its words apart."""
    plain, own = (re.sub(r"[\W_]", "", x) for x in (name, cls.__name__))
    return plain.lower() == own.lower()


def _is_of_keras_3(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "keras"


class WrappedDescription(WrappedOptimizer):
    """A description of `tfembed.optimizers`, which moves tables only."""

    moves_dense = False

    def __init__(self, opt: optimizers.Optimizer) -> None:
        if opt.learning_rate is None:
            raise errors.ArgumentError(
                f"{type(opt).__name__}(learning_rate=None) has the rate of a "
                "Keras model's optimizer, and there is none here. Give a number, "
                "a variable, a function or a schedule; or give "
                "DynamicEmbeddingOptimizer an optimizer of Keras."
            )
        self._opt = opt
        self.rule = FusedRule(opt)
        self.name = type(opt).__name__
        self.iterations = counter("iterations")

    @property
    def clipping(self) -> GradientClipping | None:
        """The norms that limit the step's gradients; None: nothing does.

        Limits of elements are the rule's own.
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
        """Refuses: a description moves tables only."""
        raise errors.UnsupportedError(
            f"{self.name} of tfembed.optimizers moves tables only; got "
            f"{pairs[0][1]!r}. Give DynamicEmbeddingOptimizer a Keras "
            "optimizer, or dense variables an optimizer of their own."
        )

    def finish(self) -> None:
        """Counts the step."""
        self.iterations.assign_add(1)
