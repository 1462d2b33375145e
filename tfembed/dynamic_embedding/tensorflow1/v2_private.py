"""The private symbols of `OptimizerV2`, the legacy optimizers of Keras.

tf_keras, Keras 2 and tensorflow.python.keras each have a class of that name,
with the same protocol. They are known by their names: none is imported here.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.training import private

_ROOTS = ("keras", "tf_keras", "tensorflow")

# What the class may do to a step as a whole, besides moving variables.
_WHOLE_STEPS = (
    "_transform_loss",
    "_get_gradients",
    "_transform_unaggregated_gradients",
    "_aggregate_gradients",
    "_transform_gradients",
    "_distributed_apply",
    "_compute_gradients",
    "apply_gradients",
    "minimize",
)
_NO_OPTIONS = (
    "_clipnorm",
    "_clipvalue",
    "_global_clipnorm",
    "_hypers_created",
    "_initial_decay",
    "_use_locking",
)


def base_of(optimizer: Any) -> Any:
    """The class `OptimizerV2` that an optimizer derives from, or None."""
    for cls in type(optimizer).__mro__:
        if cls.__name__ == "OptimizerV2" and is_of_a_library(cls):
            return cls
    return None


def is_of_a_library(cls: type) -> bool:
    """Whether a class is Keras' own and none of a user's."""
    return cls.__module__.partition(".")[0] in _ROOTS


def overridden_step(optimizer: Any) -> str | None:
    """A method of whole steps that the optimizer's class has changed, if any."""
    base = base_of(optimizer)
    for name in _WHOLE_STEPS:
        own = getattr(type(optimizer), name, None)
        if own is not getattr(base, name, None):
            return name
    return None


def aggregates_as_usual(optimizer: Any) -> bool:
    """Whether `gradient_aggregator` was left as it is."""
    aggregator = getattr(optimizer, "gradient_aggregator", None)
    usual = getattr(aggregator, "__name__", "") == "all_reduce_sum_gradients"
    return aggregator is None or usual


def name_of(optimizer: Any) -> str:
    """The name that it was given or got."""
    return str(getattr(optimizer, "_name", None) or optimizer.name)


def create_weights(optimizer: Any) -> None:
    """Makes the variables of hyperparameters and the step count."""
    _ = optimizer.iterations
    optimizer._create_hypers()


def decayed_rate(optimizer: Any) -> tf.Tensor:
    """The learning rate of the next step, after schedules and `decay`."""
    return optimizer._decayed_lr(tf.float32)


def number(optimizer: Any, name: str) -> float | None:
    """A hyperparameter that stays what it is; None: a function or a tensor."""
    value = optimizer._hyper[name]
    if isinstance(value, numbers.Real):
        return _as_float32(value)
    own = tf.VariableAggregation.ONLY_FIRST_REPLICA
    is_own = isinstance(value, tf.Variable) and value.aggregation == own
    if not is_own or not tf.executing_eagerly():
        return None
    return _as_float32(value.numpy())  # The optimizer made it of a number.


def _as_float32(value: Any) -> float:
    """The number that a float32 is written as: 0.9 of 0.9 and of its float32."""
    return float(str(np.float32(value)))


def constant(optimizer: Any, attribute: str) -> float | None:
    """An attribute that is a number; None: a tensor."""
    value = getattr(optimizer, attribute)
    return float(value) if isinstance(value, numbers.Real) else None


def options(optimizer: Any) -> dict[str, float]:
    """The numbers that an optimizer was made from, but for its rate."""
    found = {
        name.lstrip("_"): value
        for name, value in vars(optimizer).items()
        if isinstance(value, (bool, int, float))
        and name not in _NO_OPTIONS
        and not name.startswith("_self_")
    }
    for name in optimizer._hyper:
        value = number(optimizer, name)
        if value is not None and name not in ("learning_rate", "decay"):
            found[name] = value
    return dict(sorted(found.items()))


def state(optimizer: Any) -> list[tf.Variable]:
    """Variables that an optimizer keeps beside slots, step and numbers."""
    return [
        value
        for name, value in vars(optimizer).items()
        if isinstance(value, tf.Variable) and name != "_iterations"
    ]


class V2Twin:
    """Goes before the class of an optimizer with which it shares all attributes.

    Its slots are those of the rows at hand; these are of the class, which is
    one twin's.
    """

    start_slot: Callable[[str, Any], None]  # (name, initial value).
    slots: dict[str, tf.Variable]  # By name.

    def get_slot(self, var: Any, slot_name: str) -> Any:
        """The slot of the rows at hand."""
        del var
        return self.slots[slot_name]

    def add_slot(
        self,
        var: Any,
        slot_name: str,
        initializer: Any = "zeros",
        shape: Any = None,
    ) -> None:
        """Takes note of a slot of the rows at hand."""
        if shape is not None and list(shape) != list(var.shape):
            raise errors.UnsupportedError(
                f"the slot '{slot_name}' has not the variable's shape"
            )
        if isinstance(initializer, str):
            initializer = getattr(tf, f"{initializer}_initializer")()
        if callable(initializer):
            initializer = initializer(shape=var.shape, dtype=tf.float32)
        self.start_slot(slot_name, initializer)


def twin(optimizer: Any, start_slot: Callable[[str, Any], None]) -> Any:
    """The optimizer itself, but for its slots: those of the rows at hand.

    Args:
      optimizer: an `OptimizerV2`.
      start_slot: called with each slot's name and initial value.
    """
    cls = type(optimizer)
    members = {"start_slot": staticmethod(start_slot), "slots": {}}
    twin_class: Any = type(cls.__name__, (V2Twin, cls), members)
    made = object.__new__(twin_class)
    object.__setattr__(made, "__dict__", vars(optimizer))
    create_weights(optimizer)
    made._create_slots([private.sample_rows()])
    return made


def eager_copy(optimizer: Any) -> Any:
    """A copy of a graph's optimizer that eager mode can try, without its state.

    What the graph computes, such as a learning rate that decays, is a constant
    in it.
    """
    copied = {
        name: None if isinstance(value, (tf.Tensor, tf.Variable)) else value
        for name, value in vars(optimizer).items()
        if not name.startswith("_self_")
    }
    copied["_hyper"] = {
        name: value if isinstance(value, numbers.Real) else 0.1
        for name, value in optimizer._hyper.items()
    }
    copied.update(
        _iterations=None,
        _hypers_created=False,
        _slots={},
        _slot_names=[],
        _weights=[],
    )
    made = object.__new__(type(optimizer))
    object.__setattr__(made, "__dict__", copied)
    return made


def begin(optimizer: Any, variables: Sequence[tf.Variable]) -> Any:
    """Begins a step; gives what its updates share."""
    return optimizer._prepare(list(variables))


def update(
    optimizer: Any, gradient: tf.Tensor, rows: tf.Variable, shared: Any
) -> Any:
    """Applies a gradient to a variable; returns the operation."""
    takes_shared = "apply_state" in optimizer._dense_apply_args
    given = {"apply_state": shared} if takes_shared else {}
    return optimizer._resource_apply_dense(gradient, rows, **given)


def track(owner: Any, name: str, child: Any) -> None:
    """Has `owner` save `child`."""
    owner._track_trackable(child, name)


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes the slots of dense variables, for legacy optimizers and others."""
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    else:
        optimizer._create_all_weights(variables)
