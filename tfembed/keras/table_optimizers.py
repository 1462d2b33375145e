"""Conversion of Keras' optimizers and their names to tables' optimizers."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.foreign_optimizers.keras_family import (
    WrappedKeras,
    options_without_rule,
)
from tfembed.foreign_optimizers.rules import FusedRule

__all__ = ["KerasRate", "described", "keras_optimizer_of", "table_optimizer"]

_NAMES = ("sgd", "adagrad", "adam", "adamw", "ftrl", "rmsprop", "nadam", "lion")
_WITH_RULE = ("SGD", "Adagrad", "Adam", "Ftrl")

# Options of Keras that act on the gradients of a step, before its rule.
_OF_STEPS = ("clipnorm", "global_clipnorm", "loss_scale_factor")
_WITHOUT = (
    "momentum",
    "weight_decay",
    "amsgrad",
    "l2_shrinkage_regularization_strength",
    *_OF_STEPS,
)
# Arguments of tfembed's rules that do what such options do.
_OF_TFEMBED = {
    "momentum": "momentum=...",
    "weight_decay": "weight_decay_factor=..., "
    "multiply_weight_decay_factor_by_learning_rate=True",
    "clipnorm": "clipnorm=...",
    "global_clipnorm": "global_clipnorm=...",  # The norm of all tables.
}
_ANY = (
    "tfembed.keras.layers.Embedding, one layer for each feature, which takes any "
    "optimizer"
)


def table_optimizer(optimizer: Any) -> Any:
    """Returns an optimizer of Keras or `tfembed.optimizers`; None for None.

    Args:
      optimizer: such an object, a name of a Keras optimizer, or one of
        TensorFlow's optimizers for TPUs.

    Raises:
      tfembed.errors.ArgumentError: an unknown name, or another object.
    """
    if isinstance(optimizer, str):
        try:
            return keras.optimizers.get(optimizer)
        except ValueError as error:
            raise errors.ArgumentError(
                f"`optimizer` must be a name that Keras knows, such as "
                f"{', '.join(repr(name) for name in _NAMES)}; got "
                f"{optimizer!r}."
            ) from error
    if optimizer is None or isinstance(
        optimizer, (keras.optimizers.Optimizer, optimizers.Optimizer)
    ):
        return optimizer
    return optimizers.from_tensorflow(optimizer)


@dataclasses.dataclass(frozen=True, eq=False)
class KerasRate:
    """The learning rate of a table that is trained as by a Keras optimizer.

    Attributes:
      optimizer: the Keras optimizer with the learning rate, a number that can
        be set or a schedule, and the step count.
      rule: the update rule that computes the optimizer's update.
    """

    optimizer: Any
    rule: FusedRule

    def __call__(self) -> tf.Tensor:
        """Returns the learning rate of the next step."""
        rate = tf.cast(
            tf.convert_to_tensor(self.optimizer.learning_rate), "float32"
        )
        if self.rule.rate is None:
            return rate
        step = tf.cast(
            tf.convert_to_tensor(self.optimizer.iterations), tf.int64
        )
        return self.rule.rate(rate, step + 1)


def described(optimizer: Any) -> Any:
    """Converts an optimizer to the `tfembed.optimizers` one with its update.

    Args:
      optimizer: as in `table_optimizer`.

    Raises:
      tfembed.errors.ArgumentError: as `table_optimizer`.
      tfembed.errors.UnsupportedError: a Keras optimizer, or an option, without
        an update rule.
    """
    optimizer = table_optimizer(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return optimizer
    wrapped = WrappedKeras(optimizer)
    options = options_without_rule(optimizer)
    options += [name for name in _OF_STEPS if getattr(optimizer, name)]
    if not isinstance(wrapped.rule, FusedRule) or options:
        raise errors.UnsupportedError(_no_rule(optimizer, options))
    rule: Any = wrapped.rule.optimizer  # A dataclass for every rule.
    return dataclasses.replace(
        rule,
        learning_rate=KerasRate(optimizer, wrapped.rule),
        clipvalue=optimizer.clipvalue,
    )


def _no_rule(optimizer: Any, options: list[str]) -> str:
    """Returns the text of the error for an optimizer without an update rule."""
    name = type(optimizer).__name__
    given = ", ".join(f"{one}={getattr(optimizer, one)!r}" for one in options)
    does = (
        f"Leave {' and '.join(options)} out" if options else "Use one of them"
    )
    instead = []
    arguments = [_OF_TFEMBED[one] for one in options if one in _OF_TFEMBED]
    if arguments:
        rule = {"Ftrl": "FTRL"}.get(name, name)
        rule = "Momentum" if "momentum" in options else rule
        instead.append(f"tfembed.{rule}(..., {', '.join(arguments)})")
    if "loss_scale_factor" in options:
        instead.append("`loss_scale_optimizer` of the layer for the loss scale")
    return (
        f"{name}{f'({given})' if given else ''} has no rule by which a "
        f"DistributedEmbedding moves its tables: Keras' {', '.join(_WITH_RULE)} "
        f"have one, without {', '.join(_WITHOUT)}. {does}; or use "
        f"{'; or '.join([*instead, _ANY])}."
    )


def keras_optimizer_of(description: Any) -> Any:
    """Returns the Keras optimizer that `described` converted, or None."""
    rate = getattr(description, "learning_rate", None)
    return rate.optimizer if isinstance(rate, KerasRate) else None
