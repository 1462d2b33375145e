"""Updates whose gradients were taken, until an optimizer applies them.

A lookup in a layer has no gradient that an optimizer could read: its ids and
the gradients of its activations are an update of the tables. So the gradient
of the layer's weight is a vector with a coefficient for each of the last
updates, here 1 for one of them, and the update waits. Gradients that are added
or scaled have their updates' coefficients; an optimizer that is given the
vector applies the sum of coefficient times update. A gradient that no optimizer
gets moves nothing.

An update that is taken and applied in one function goes there as tensors.
Otherwise it goes through `tf.py_function` into the memory of this object.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.ops.private import single_variable

__all__ = ["SLOTS", "TakenUpdates", "Update", "mark_moved"]

SLOTS = 256  # The elements of a gradient: of held updates, then of functions.
_HELD_SLOTS = 128
_UNIT = 2.0**-50  # Coefficient 1: small, so that norms of gradients omit it.
_MOST_HELD = 64  # The updates that wait outside of functions.
_MOST_BYTES = 2**30  # Of those; the newest waits at any size.
_MOST_TIMES = 2.0**20  # The largest coefficient.
_TRACED = "tfembed_taken_updates"  # The graph's collection of its updates.
_MOVED = "tfembed_moved_rows"  # The graph's gradients that moved the rows.
_KEEP_ELEMENTS = {  # Ops after which an update is applied, by what is left.
    "AddN",
    "AddV2",
    "Identity",
    "Mul",
    "PreventGradient",
    "RealDiv",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """The ids of a call and the gradients of its activations.

    Attributes:
      tensors: the ids, a list of tensors for each feature.
      gradients: float32, one for each feature.
      factor: a scalar to multiply all gradients by.
      apply: updates the tables by such ids and gradients of several calls:
        for each call its `call`, its `tensors`, and gradients.
      call: the static part of the call, for `apply`.
    """

    tensors: list[tf.Tensor]
    gradients: list[tf.Tensor]
    factor: tf.Tensor
    apply: Callable[[Sequence[tuple[Any, list[Any], list[Any]]]], None]
    call: Any

    @functools.cached_property
    def bytes(self) -> int:
        """The bytes of the tensors, which have values."""
        sizes = [
            one.shape.num_elements() * one.dtype.size
            for one in (*self.gradients, *self.tensors)
        ]
        return sum(sizes)


@dataclasses.dataclass(frozen=True, eq=False)
class _Traced:
    """An update of a function that is being traced.

    Attributes:
      marker: the op that made its gradient.
      slot: its element of gradients that are applied in this function.
      update: the update.
      leaves: a variable: whether no optimizer of the function gets it.
    """

    marker: tf.Operation
    slot: int
    update: Update
    leaves: tf.Variable


class TakenUpdates:
    """The updates of the tables of one or several layers.

    Args:
      layer: the name of the layer, for errors.
    """

    def __init__(self, layer: str) -> None:
        self._layer = layer
        self._held: collections.OrderedDict[int, Update] = (
            collections.OrderedDict()
        )
        self._slots = itertools.cycle(range(_HELD_SLOTS))
        self._calls: list[tuple[Any, Any]] = []  # Of functions: apply, call.
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: Any) -> TakenUpdates:
        return TakenUpdates(self._layer)

    def __reduce__(self) -> Any:
        return TakenUpdates, (self._layer,)

    def take(self, update: Update, trap: tf.Tensor) -> tf.Tensor:
        """Returns the gradient that stands for an update, float32 [SLOTS].

        Args:
          update: the update, which waits.
          trap: float32 [SLOTS], on which the gradient depends by zeros, for
            tapes that differentiate it.
        """
        if tf.executing_eagerly():
            return 0.0 * trap + _gradient_of(self._hold(update))
        graph = tf.compat.v1.get_default_graph()
        traced = graph.get_collection_ref(_TRACED)
        with tf.init_scope():
            leaves = single_variable(initial_value=True, trainable=False)
        slot = _HELD_SLOTS + len(traced) % (SLOTS - _HELD_SLOTS)

        number, count = len(self._calls), len(update.gradients)
        self._calls.append((update.apply, update.call))

        def hold_again(own: TakenUpdates, factor: Any, *parts: Any) -> int:
            return own._hold(
                Update(
                    list(parts[count:]),
                    list(parts[:count]),
                    factor,
                    *own._calls[number],
                )
            )

        def hold() -> tf.Tensor:
            parts = [update.factor, *update.gradients, *update.tensors]
            return tf.ensure_shape(self._run(hold_again, parts, tf.int64), [])

        chosen = tf.cond(leaves, hold, lambda: tf.constant(slot, tf.int64))
        gradient = 0.0 * trap + _gradient_of(chosen)
        traced.append(_Traced(gradient.op, slot, update, leaves))
        return gradient

    def apply(self, gradient: tf.Tensor) -> None:
        """Updates the tables by the updates that a gradient has.

        Args:
          gradient: a vector of `take`, or a linear combination of some.

        Raises:
          tfembed.errors.StateError: (also RuntimeError) one of the updates was
            applied before, or is too old.
        """
        if not tf.is_symbolic_tensor(gradient):
            self._apply_held(gradient)
            return
        found, is_certain = _ancestors(gradient)
        if not is_certain:
            self._apply_held_later(gradient)
            return
        if not found:
            return  # The rows have moved.
        with tf.init_scope():
            for one in found:
                one.leaves.assign(False)
        largest = tf.reduce_max(tf.abs(gradient))
        check = tf.debugging.assert_less_equal(
            largest, _MOST_TIMES * _UNIT, self._not_combined()
        )
        with tf.control_dependencies([check]):
            gradient = tf.identity(gradient)
        _apply([(one.update, gradient[one.slot]) for one in found])

    def _apply_held_later(self, gradient: tf.Tensor) -> None:
        """Applies a gradient when a function runs; runs no Python for zeros."""

        def applied() -> tf.Tensor:
            done = self._run(TakenUpdates._apply_held, [gradient], [])
            with tf.control_dependencies([done]):
                return tf.constant(True)

        is_any = tf.reduce_any(tf.not_equal(gradient, 0.0))
        tf.cond(is_any, applied, lambda: tf.constant(False))

    def _hold(self, update: Update) -> int:
        with self._lock:
            slot = next(self._slots)
            self._held.pop(slot, None)
            self._held[slot] = update
            count = sum(one.bytes for one in self._held.values())
            while len(self._held) > 1 and (
                len(self._held) > _MOST_HELD or count > _MOST_BYTES
            ):
                _, oldest = self._held.popitem(last=False)
                count -= oldest.bytes
        return slot

    def _run(
        self, function: Callable[..., Any], inputs: list[Any], dtype: Any
    ) -> Any:
        """Calls `function` of this object and inputs when a function runs.

        TensorFlow keeps what tf.py_function is given until a `clear_session`:
        no table, therefore.
        """
        reference, layer = weakref.ref(self), self._layer

        def run(*values: Any) -> Any:
            own = reference()
            if own is None:
                raise errors.StateError(f"The layer '{layer}' was deleted.")
            return function(own, *values)

        with tf.device("/CPU:0"):
            return tf.py_function(run, inputs, dtype)

    def _apply_held(self, gradient: tf.Tensor) -> None:
        values = gradient.numpy()
        if not (abs(values) <= _MOST_TIMES * _UNIT).all():
            raise errors.StateError(self._not_combined())
        slots = values.nonzero()[0].tolist()
        with self._lock:
            if any(slot not in self._held for slot in slots):
                raise errors.StateError(
                    f"The gradient of layer '{self._layer}' was applied before, "
                    f"or more than {_MOST_HELD} gradients, or gradients of more "
                    f"than {_MOST_BYTES:,} bytes, were taken after it. Apply it "
                    "once, and soon: its ids and the gradients of its "
                    "activations are kept until then."
                )
            updates = [(self._held.pop(slot), values[slot]) for slot in slots]
        _apply(updates)

    def _not_combined(self) -> str:
        return (
            f"The gradient of layer '{self._layer}' must be a sum or a multiple "
            "of what tapes returned, and finite: it stands for updates of "
            "tables. A gradient of its own norm, with noise or of NaN is none; "
            "change the loss, or the gradients of the activations, instead."
        )


def mark_moved(gradient: tf.Tensor) -> tf.Tensor:
    """Returns a gradient of zeros, marked as one that has moved the rows."""
    if tf.inside_function():
        gradient.graph.add_to_collection(_MOVED, gradient.op)
    return gradient


def _apply(updates: Sequence[tuple[Update, Any]]) -> None:
    """Applies updates at once, each times its element of a gradient."""
    calls = []
    for update, element in updates:
        factor = update.factor * (element / _UNIT)
        scaled = [one * factor for one in update.gradients]
        calls.append((update.call, update.tensors, scaled))
    if calls:
        updates[0][0].apply(calls)


def _gradient_of(slot: Any) -> tf.Tensor:
    return tf.one_hot(slot, SLOTS, tf.constant(_UNIT), tf.constant(0.0))


def _ancestors(gradient: tf.Tensor) -> tuple[list[_Traced], bool]:
    """Returns the updates of which a gradient of a function is made.

    Also returns whether it is made of these alone, each with a slot of its own,
    and of all of them, whatever is computed.
    """
    found: dict[tf.Operation, _Traced | None] = {}
    waiting = [gradient]
    while waiting:
        tensor = waiting.pop()
        op, graph = tensor.op, tensor.graph
        if op in found:
            continue
        # A function's graph begins with the collections of that around it.
        traced = {one.marker: one for one in graph.get_collection_ref(_TRACED)}
        found[op] = traced.get(op)
        if op in traced or op in graph.get_collection_ref(_MOVED):
            continue
        if op.type == "Placeholder":  # A branch has what is around it.
            inputs = [
                outer
                for outer, inner in getattr(graph, "captures", ())
                if inner is tensor
            ]
        elif op.type in _KEEP_ELEMENTS:
            inputs = [
                one
                for one in op.inputs
                if one.shape.is_compatible_with([SLOTS])
            ]
        else:
            return [], False
        if not inputs or not all(map(tf.is_symbolic_tensor, inputs)):
            return [], False
        waiting += inputs
    updates = [one for one in found.values() if one is not None]
    has_all = len({one.slot for one in updates}) == len(updates)
    return updates, has_all
