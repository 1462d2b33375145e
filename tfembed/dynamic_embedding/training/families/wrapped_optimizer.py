"""What `DynamicEmbeddingOptimizer` asks of the optimizer that it was given."""

from __future__ import annotations

import abc
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.training import private
from tfembed.dynamic_embedding.training.clipping import GradientClipping
from tfembed.dynamic_embedding.training.fused_rule import (
    FusedRule,
)
from tfembed.dynamic_embedding.training.row_rule import RowRule

__all__ = ["WrappedOptimizer", "counter", "lasting_name", "takes_step"]

# What Keras 3.12 calls its own optimizers, where that is not the class in lower
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
    def clipping(self) -> GradientClipping:
        """What happens to gradients before the update."""
        return GradientClipping()

    def check_rule(self) -> None:  # Most need none.
        """Refuses a `rule` that is no longer the optimizer's."""
        return  # AutoGraph cannot convert a method without a statement.

    @abc.abstractmethod
    def learning_rate(self) -> tf.Tensor:
        """That of the next step."""

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
    """What files and checkpoints call a Keras optimizer: nothing that counts.

    Keras numbers the optimizers of a class that were given no name ("adagrad_2"
    for the third in the process), those of its own from 3.15 on. The number is
    left out, and Keras' own are called as in 3.12. A name that was given stays;
    one of that form cannot be told from Keras' where that numbers them, and
    loses its number too, since a file that was loaded gives it as well.

    Args:
      opt: of Keras 3, or of tf_keras.
      name: what it is called.
    """
    cls = type(opt)
    counted = re.fullmatch(r"(.+)_(\d+)", name)
    plain = next(
        (
            one
            for one in (name, counted and counted[1])
            if one and _letters(one) == _letters(cls.__name__)
        ),
        None,
    )
    if plain is None:
        return name
    default = inspect.signature(cls).parameters.get("name")
    if default is not None and isinstance(default.default, str):
        # Then only who asks for a number, by name=None, gets one.
        is_numbered = (
            counted is not None
            and plain == counted[1]
            and int(counted[2]) < private.keras_numbered(plain)
        )
        return plain if is_numbered else name
    maker = next(one for one in cls.__mro__ if "__init__" in vars(one))
    is_keras_own = maker.__module__.partition(".")[0] == "keras"
    if not is_keras_own or maker.__name__.endswith("Optimizer"):
        return plain
    return _NAMES.get(maker.__name__, maker.__name__.lower())


def _letters(name: str) -> str:
    """A name without what its two spellings differ in."""
    return re.sub(r"[\W_]", "", name).lower()


def takes_step(rate: Callable[..., Any]) -> bool:
    """Whether a learning rate is a schedule: a function of the step."""
    parameters = inspect.signature(rate).parameters.values()
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    return any(
        p.kind in positional and p.default is p.empty for p in parameters
    )
