"""The private TensorFlow and Keras symbols of optimizers.

Those of Keras' legacy ones are in `v2_private.py`; there are no others. Each is wrapped in a function here and tried by the tests of the optimizers on
every supported version.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops


def keras_state(optimizer: Any) -> list[tf.Variable]:
    """What a built Keras optimizer keeps beside its slots, step and rate."""
    known = (
        optimizer._iterations,
        getattr(optimizer, "_learning_rate", None),
        getattr(optimizer, "_current_learning_rate", None),
    )
    found = optimizer.variables
    found = found() if callable(found) else found
    return [
        getattr(v, "value", v) if not isinstance(v, tf.Variable) else v
        for v in found
        if not any(v is one for one in known)
    ]


class KerasTwin:
    """Goes before a Keras 3 optimizer's class, whose gradients are functions.

    `_backend_update_step` may be extended by an optimizer (Nadam does); at its
    end the base class calls these for all variables of a step.
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
    twin: Any,
    reference: Any,
    moves: Sequence[Callable[[], None]],
    rate: Any,
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
    """Where Keras may call merge_call, which its steps do."""
    if tf.distribute.get_replica_context() is not None:
        return contextlib.nullcontext()
    return tf.distribute.ReplicaContext(
        tf.distribute.get_strategy(), replica_id_in_sync_group=0
    )


def keras_overrides_whole_steps(optimizer: Any) -> bool:
    """Whether a tf_keras optimizer does something once for each step."""
    return any(
        "_internal_apply_gradients" in cls.__dict__
        for cls in type(optimizer).__mro__
        if not cls.__name__.endswith("Optimizer")
    )


def keras_decays(optimizer: Any, variable: Any) -> bool:
    """Whether `exclude_from_weight_decay` leaves `variable` in."""
    decays = getattr(optimizer, "_use_weight_decay", None)
    return decays is None or bool(decays(variable))


def keras_schedule(optimizer: Any) -> Any:
    """The learning rate as it was given: a number's variable or a schedule."""
    return getattr(optimizer, "_learning_rate", None)


def keras_numbered(prefix: str) -> int:
    """How many names that begin with `prefix` Keras 3 has numbered so far."""
    module = sys.modules.get("keras.src.backend.common.global_state")
    if module is None:
        return 0
    numbers = module.get_global_attribute("object_name_uids") or {}
    return int(numbers.get(prefix, 0))


_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"  # ResourceHandle's own.


def local_variable(rows: tf.Tensor, name: str) -> tf.Variable:
    """A variable [None, dim] that starts as `rows` and lives until `destroy`.

    A function makes one whenever it runs, so that runs share nothing.
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
    """Frees a local variable."""
    tf.raw_ops.DestroyResourceOp(resource=variable.handle)


class V1Twin:
    """Goes before the class of a copied tf.compat.v1 optimizer.

    Its slots are those of the rows at hand; everything else (powers of beta,
    say) is the optimizer's own.
    """

    original: Any  # The optimizer.
    start_slot: Callable[[str, Any], None]  # (name, initial value).
    slots: dict[str, tf.Variable]  # By name; of the class, which is one twin's.

    def get_slot(self, var: Any, name: str) -> Any:
        """The slot of the rows at hand."""
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
        # Those of a graph of TensorFlow 1 are asked for by a function of it.
        while isinstance(graph, tf.__internal__.FuncGraph):
            graph = graph.outer_graph
        get = self.original._get_non_slot_variable
        found = get(name, graph=graph)
        return get(name) if found is None else found


def sample_rows() -> tf.Variable:
    """Rows that an optimizer can make slots for, so that these are known.

    In a graph of TensorFlow 1 nobody initializes or saves them.
    """
    return tf.compat.v1.Variable(
        tf.zeros([2, 2]),
        trainable=False,
        collections=[],
        name="rows",
        use_resource=True,
    )


def v1_twin(optimizer: Any, start_slot: Callable[[str, Any], None]) -> Any:
    """A copy of an optimizer whose slots are those of the rows at hand.

    Args:
      optimizer: of tf.compat.v1.
      start_slot: called with each slot's name and initial value.
    """
    twin = copy.copy(optimizer)
    cls = type(optimizer)
    twin.__class__ = type(cls.__name__, (V1Twin, cls), {"slots": {}})
    twin.original = optimizer
    twin.start_slot = start_slot
    twin._create_slots([sample_rows()])
    return twin


def v1_eager_copy(optimizer: Any) -> Any:
    """A copy of a graph's optimizer that eager mode can try, without its state.

    What the graph computes, such as a learning rate that decays, is a constant
    in it.
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


def eager_mode() -> Any:
    """Executes eagerly, also where a graph of TensorFlow 1 is being built."""
    return tf.__internal__.eager_context.eager_mode()


def v1_create_state(twin: Any, variable: tf.Variable) -> None:
    """Makes the variables that are no slots where they are not there yet."""
    twin.start_slot = lambda name, initial: None
    twin._create_slots([variable])


def v1_update(twin: Any, gradient: tf.Tensor, rows: tf.Variable) -> Any:
    """Applies a gradient to a local variable; returns the operation."""
    return twin._resource_apply_dense(gradient, rows)


def v1_begin(optimizer: Any) -> None:
    """Begins a step."""
    optimizer._prepare()


def v1_finish(optimizer: Any) -> None:
    """Ends a step in which only tables moved."""
    optimizer._finish([], "finish")


def v1_options(optimizer: Any) -> dict[str, float]:
    """The numbers that an optimizer was made from, but for its rate."""
    return {
        name.lstrip("_"): value
        for name, value in sorted(vars(optimizer).items())
        if isinstance(value, (bool, int, float))
        and name not in ("_lr", "_learning_rate")
        and not name.startswith("_use_lock")
        and not name.startswith("_use_own")
    }


def v1_option(optimizer: Any, *names: str) -> Any:
    """The first of these private attributes that an optimizer has."""
    for name in names:
        value = getattr(optimizer, f"_{name}", None)
        if value is not None:
            return value() if callable(value) else value
    return None
