"""The private TensorFlow and Keras symbols for optimizers and tf_keras' steps.

tests/dynamic_embedding/training and tests/dynamic_embedding/tensorflow1 try
each of them, on the versions that `tfembed/ops/private.py` lists.
"""

from __future__ import annotations

import contextlib
import copy
import numbers
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from tfembed import errors
from tfembed.ops.model_calls import train_steps

_V1 = "the end of tf.compat.v1.train's optimizers"
_V2 = "the end of Keras' legacy optimizers"
_PURE = "optimizers of Keras as functions of a gradient and of slots"

# The public API that would end each entry.
ENDED_BY = {
    "KerasTwin": _PURE,
    "V1Twin": _V1,
    "V2Twin": _V2,
    "aggregates_as_usual": _V2,
    "base_of": _V2,
    "begin": _V2,
    "build": "a `build` of all optimizers",
    "constant": _V2,
    "create_weights": _V2,
    "decayed_rate": _V2,
    "destroy": "a public variable that each run of a function makes",
    "eager_copy": _V2,
    "is_of_a_library": _V2,
    "keras_decays": "a public `excludes_from_weight_decay(variable)`",
    "keras_numbered": "names of Keras' optimizers without numbers",
    "keras_overrides_whole_steps": _PURE,
    "keras_schedule": "a public learning rate that is not evaluated",
    "keras_state": _PURE,
    "keras_update": _PURE,
    "local_variable": "a public variable that each run of a function makes",
    "name_of": _V2,
    "number": _V2,
    "options": _V2,
    "overridden_step": _V2,
    "sample_rows": _V1,
    "state": _V2,
    "stepping_model": "a public `tf_keras.Model` of the step that runs",
    "twin": _V2,
    "update": _V2,
    "v1_begin": _V1,
    "v1_create_state": _V1,
    "v1_eager_copy": _V1,
    "v1_finish": _V1,
    "v1_option": _V1,
    "v1_options": _V1,
    "v1_twin": _V1,
    "v1_update": _V1,
}


def keras_state(optimizer: Any) -> list[tf.Variable]:
    """Returns a built Keras optimizer's variables besides slots, step, rate."""
    known = (
        optimizer._iterations,
        getattr(optimizer, "_learning_rate", None),
        getattr(optimizer, "_current_learning_rate", None),
    )
    found = optimizer.variables
    found = found() if callable(found) else found
    # The Nadam of tf_keras has a plain variable, which is not listed.
    plain = [v for v in vars(optimizer).values() if isinstance(v, tf.Variable)]
    state = {id(v): v for v in (*found, *plain)}
    return [
        getattr(v, "value", v) if not isinstance(v, tf.Variable) else v
        for v in state.values()
        if not any(v is one for one in known)
    ]


class KerasTwin:
    """A base class put before a Keras 3 optimizer's class; takes its updates.

    An optimizer may extend `_backend_update_step` (Nadam does); at its end the
    base class calls the methods below for all variables of a step.
    """

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars

    def _distributed_tf_update_step(
        self, distribution: Any, grads_and_vars: Any, learning_rate: Any
    ) -> None:
        del distribution, learning_rate
        for move, _ in grads_and_vars:
            move()


def keras_update(
    twin: Any, reference: Any, moves: Sequence[Callable[[], None]], rate: Any
) -> None:
    """Calls `moves` as the updates of one step."""
    if hasattr(twin, "_backend_update_step"):
        with _replica_context():
            twin._backend_update_step(
                list(moves), [reference] * len(moves), rate
            )
    else:
        for move in moves:
            move()


def _replica_context() -> Any:
    """Returns a context in which Keras may call merge_call, as its steps do."""
    if tf.distribute.get_replica_context() is not None:
        return contextlib.nullcontext()
    return tf.distribute.ReplicaContext(
        tf.distribute.get_strategy(), replica_id_in_sync_group=0
    )


def keras_overrides_whole_steps(optimizer: Any) -> bool:
    """Whether a tf_keras optimizer does some work once per step."""
    return any(
        "_internal_apply_gradients" in cls.__dict__
        for cls in type(optimizer).__mro__
        if not cls.__name__.endswith("Optimizer")
    )


def keras_decays(optimizer: Any, variable: Any) -> bool:
    """Whether weight decay applies to `variable`: it is not excluded."""
    decays = getattr(optimizer, "_use_weight_decay", None)
    return decays is None or bool(decays(variable))


def keras_schedule(optimizer: Any) -> Any:
    """Returns the given rate: a variable (for a number) or a schedule."""
    return getattr(optimizer, "_learning_rate", None)


def keras_numbered(prefix: str) -> int:
    """Returns the count of Keras 3's names that begin with `prefix`."""
    module = sys.modules.get("keras.src.backend.common.global_state")
    if module is None:
        return 0
    numbers = module.get_global_attribute("object_name_uids") or {}
    return int(numbers.get(prefix, 0))


# The name for an anonymous ResourceHandle.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


def local_variable(rows: tf.Tensor, name: str) -> tf.Variable:
    """Makes a variable [None, dim] of `rows` that exists until `destroy`.

    Each run of a function makes its own, so that runs share no state.
    """
    shape = tf.TensorShape([None]).concatenate(rows.shape[1:])
    handle = tf.raw_ops.VarHandleOp(
        dtype=rows.dtype, shape=shape, shared_name=_ANONYMOUS
    )
    variable = resource_variable_ops.BaseResourceVariable(
        trainable=False,
        shape=shape,
        dtype=rows.dtype,
        handle=handle,
        name=name,
        handle_name=name,
        unique_id=name,
    )
    variable.assign(rows)
    return variable


def destroy(variable: tf.Variable) -> None:
    """Frees the resource of a local variable."""
    tf.raw_ops.DestroyResourceOp(resource=variable.handle)


class V1Twin:
    """A base class put before the class of a copied tf.compat.v1 optimizer.

    Its slots are those of the current rows; it shares all other state (for
    instance powers of beta) with the original.
    """

    original: Any  # The optimizer.
    start_slot: Callable[[str, Any], None]  # (name, initial value).
    slots: dict[str, tf.Variable]  # By name; a class attribute of one twin.

    def get_slot(self, var: Any, name: str) -> Any:
        """Returns the slot of the current rows."""
        del var
        return self.slots[name]

    def _zeros_slot(self, var: Any, slot_name: str, op_name: str) -> None:
        del var, op_name
        self.start_slot(slot_name, 0.0)

    def _get_or_make_slot(
        self, var: Any, val: Any, slot_name: str, op_name: str
    ) -> None:
        del var, op_name
        self.start_slot(slot_name, val)

    def _get_or_make_slot_with_initializer(
        self,
        var: Any,
        initializer: Any,
        shape: Any,
        dtype: Any,
        slot_name: str,
        op_name: str,
    ) -> None:
        del var, op_name
        self.start_slot(slot_name, initializer(shape, dtype))

    def _create_non_slot_variable(self, *args: Any, **kwargs: Any) -> Any:
        return self.original._create_non_slot_variable(*args, **kwargs)

    def _get_non_slot_variable(self, name: str, graph: Any = None) -> Any:
        # A function uses the variables of its outer graph.
        while isinstance(graph, tf.__internal__.FuncGraph):
            graph = graph.outer_graph
        get = self.original._get_non_slot_variable
        found = get(name, graph=graph)
        return get(name) if found is None else found


def sample_rows() -> tf.Variable:
    """Makes sample rows, on which an optimizer can create its slots.

    In a TensorFlow 1 graph they are neither initialized nor saved.
    """
    return tf.compat.v1.Variable(
        tf.zeros([2, 2]),
        trainable=False,
        collections=[],
        name="rows",
        use_resource=True,
    )


def v1_twin(optimizer: Any, start_slot: Callable[[str, Any], None]) -> Any:
    """Copies an optimizer; the copy's slots are those of the current rows.

    Args:
      optimizer: an optimizer of tf.compat.v1.
      start_slot: called with the name and the initial value of each slot.
    """
    twin = copy.copy(optimizer)
    cls = type(optimizer)
    twin.__class__ = type(cls.__name__, (V1Twin, cls), {"slots": {}})
    twin.original = optimizer
    twin.start_slot = start_slot
    twin._create_slots([sample_rows()])
    return twin


def v1_eager_copy(optimizer: Any) -> Any:
    """Copies a graph's optimizer, without state, so that eager mode can run it.

    A value that the graph computes, for instance a decaying learning rate,
    becomes a constant.
    """
    trial = copy.copy(optimizer)
    trial._slots, trial._non_slot_dict = {}, {}
    for name, value in vars(optimizer).items():
        if name in ("_lr", "_learning_rate") and callable(value):
            value = value()
        if isinstance(value, (tf.Tensor, tf.Variable)):
            number = 0.1 if value.dtype.is_floating else 1
            value = np.asarray(number, value.dtype.as_numpy_dtype)
            setattr(trial, name, value)
    return trial


def v1_create_state(twin: Any, variable: tf.Variable) -> None:
    """Makes the missing variables that are not slots."""
    twin.start_slot = lambda name, initial: None
    twin._create_slots([variable])


def v1_update(twin: Any, gradient: tf.Tensor, rows: tf.Variable) -> Any:
    """Applies a gradient to a local variable; returns the operation."""
    return twin._resource_apply_dense(gradient, rows)


def v1_begin(optimizer: Any) -> None:
    """Starts a step."""
    optimizer._prepare()


def v1_finish(optimizer: Any) -> None:
    """Ends a step in which only tables were updated."""
    optimizer._finish([], "finish")


def v1_options(optimizer: Any) -> dict[str, float]:
    """Returns the numbers of an optimizer's constructor, without the rate."""
    return {
        name.lstrip("_"): value
        for name, value in sorted(vars(optimizer).items())
        if isinstance(value, (bool, int, float))
        and name not in ("_lr", "_learning_rate")
        and not name.startswith("_self_")
        and not name.startswith("_use_lock")
        and not name.startswith("_use_own")
    }


def v1_option(optimizer: Any, *names: str) -> Any:
    """Returns the first of these private attributes that is set, or None."""
    for name in names:
        value = getattr(optimizer, f"_{name}", None)
        if value is not None:
            return value() if callable(value) else value
    return None


# The private symbols of `OptimizerV2`, the legacy optimizers of Keras.
#
# tf_keras, Keras 2 and tensorflow.python.keras each have a class of this name,
# with the same protocol. They are identified by name: none is imported here.

_ROOTS = ("keras", "tf_keras", "tensorflow")

# Methods with which a subclass may change more than the update of a variable.
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
    """Returns the class `OptimizerV2` among an optimizer's bases, or None."""
    for cls in type(optimizer).__mro__:
        if cls.__name__ == "OptimizerV2" and is_of_a_library(cls):
            return cls
    return None


def is_of_a_library(cls: type) -> bool:
    """Whether a class is of Keras or TensorFlow, not a user's."""
    return cls.__module__.partition(".")[0] in _ROOTS


def overridden_step(optimizer: Any) -> str | None:
    """Returns the name of an overridden method of whole steps, or None."""
    base = base_of(optimizer)
    for name in _WHOLE_STEPS:
        own = getattr(type(optimizer), name, None)
        if own is not getattr(base, name, None):
            return name
    return None


def aggregates_as_usual(optimizer: Any) -> bool:
    """Whether `gradient_aggregator` has its default."""
    aggregator = getattr(optimizer, "gradient_aggregator", None)
    usual = getattr(aggregator, "__name__", "") == "all_reduce_sum_gradients"
    return aggregator is None or usual


def name_of(optimizer: Any) -> str:
    """Returns the name of the optimizer, given or default."""
    return str(getattr(optimizer, "_name", None) or optimizer.name)


def create_weights(optimizer: Any) -> None:
    """Makes the variables of hyperparameters and the step count."""
    _ = optimizer.iterations
    optimizer._create_hypers()


def decayed_rate(optimizer: Any) -> tf.Tensor:
    """Returns the rate of the next step, with schedules and `decay`."""
    return optimizer._decayed_lr(tf.float32)


def number(optimizer: Any, name: str) -> float | None:
    """Returns a constant hyperparameter; None for a function or a tensor."""
    value = optimizer._hyper[name]
    if isinstance(value, numbers.Real):
        return _as_float32(value)
    own = tf.VariableAggregation.ONLY_FIRST_REPLICA
    is_own = isinstance(value, tf.Variable) and value.aggregation == own
    if not is_own or not tf.executing_eagerly():
        return None
    return _as_float32(value.numpy())  # The optimizer made it from a number.


def _as_float32(value: Any) -> float:
    """Returns the shortest number with this float32 value: 0.9 for both."""
    return float(str(np.float32(value)))


def constant(optimizer: Any, attribute: str) -> float | None:
    """Returns an attribute that is a number; None for a tensor."""
    value = getattr(optimizer, attribute)
    return float(value) if isinstance(value, numbers.Real) else None


def options(optimizer: Any) -> dict[str, float]:
    """Returns the numbers of an optimizer's constructor, without the rate."""
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
    """Returns an optimizer's variables besides slots, step and numbers."""
    return [
        value
        for name, value in vars(optimizer).items()
        if isinstance(value, tf.Variable) and name != "_iterations"
    ]


class V2Twin:
    """A base class put before an optimizer's class; shares its attributes.

    Its slots are those of the current rows; they are class attributes of one
    twin.
    """

    start_slot: Callable[[str, Any], None]  # (name, initial value).
    slots: dict[str, tf.Variable]  # By name.

    def get_slot(self, var: Any, slot_name: str) -> Any:
        """Returns the slot of the current rows."""
        del var
        return self.slots[slot_name]

    def add_slot(
        self,
        var: Any,
        slot_name: str,
        initializer: Any = "zeros",
        shape: Any = None,
    ) -> None:
        """Records a slot of the current rows."""
        if shape is not None and list(shape) != list(var.shape):
            raise errors.UnsupportedError(
                f"the slot '{slot_name}' does not have the variable's shape"
            )
        if isinstance(initializer, str):
            initializer = getattr(tf, f"{initializer}_initializer")()
        if callable(initializer):
            initializer = initializer(shape=var.shape, dtype=tf.float32)
        self.start_slot(slot_name, initializer)


def twin(optimizer: Any, start_slot: Callable[[str, Any], None]) -> Any:
    """Returns the optimizer itself, but with the slots of the current rows.

    Args:
      optimizer: an `OptimizerV2`.
      start_slot: called with the name and the initial value of each slot.
    """
    cls = type(optimizer)
    members = {"start_slot": staticmethod(start_slot), "slots": {}}
    twin_class: Any = type(cls.__name__, (V2Twin, cls), members)
    made = object.__new__(twin_class)
    object.__setattr__(made, "__dict__", vars(optimizer))
    create_weights(optimizer)
    made._create_slots([sample_rows()])
    return made


def eager_copy(optimizer: Any) -> Any:
    """Copies a graph's optimizer, without state, so that eager mode can run it.

    A value that the graph computes, for instance a decaying learning rate,
    becomes a constant.
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
    """Starts a step; returns the state that its updates share."""
    return optimizer._prepare(list(variables))


def update(
    optimizer: Any, gradient: tf.Tensor, rows: tf.Variable, shared: Any
) -> Any:
    """Applies a gradient to a variable; returns the operation."""
    takes_shared = "apply_state" in optimizer._dense_apply_args
    given = {"apply_state": shared} if takes_shared else {}
    return optimizer._resource_apply_dense(gradient, rows, **given)


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes the slots of dense variables, for legacy optimizers and others."""
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    else:
        optimizer._create_all_weights(variables)


def stepping_model() -> Any:
    """Returns the tf_keras model whose training step runs, or None."""
    tf_keras: Any = sys.modules.get("tf_keras")
    if tf_keras is None:
        return None
    models = (one for one in train_steps() if isinstance(one, tf_keras.Model))
    return next(models, None)
