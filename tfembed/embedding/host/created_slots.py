"""Slots that a user's `slot_variable_creation_fn` makes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.embedding import private
from tfembed.embedding.steps.batch_queue import HOST

__all__ = ["create"]


def create(
    owner: Any,
    parameters: Any,
    table: str,
    optimizer: optimizers.Optimizer,
    *,
    is_single: bool,
) -> dict[str, Any]:
    """Has the optimizer's function make the slots of a static table.

    Args:
      owner: the trackable object that saves them, where TensorFlow's TPUEmbedding
        does: as `_variables/<table>/<slot>`, since they are not the table's. It
        leaves alone what the function gives as tf.Module's `_no_dependency`.
      parameters: the table's variable.
      table: its name.
      optimizer: with a `slot_variable_creation_fn`.
      is_single: there is one copy of each, whatever strategy is in scope; else
        the strategy makes them.

    Returns:
      The slots by name, in the rule's order.

    Raises:
      tfembed.errors.ArgumentError: not a dict of all slots and no others, or a
        slot that is no float32 tf.Variable of the slot's shape.
    """
    values = optimizer.slot_initial_values
    creator = optimizer.slot_variable_creation_fn
    assert creator is not None  # The caller looked.
    with _one_copy() if is_single else contextlib.nullcontext():
        made = creator(
            parameters,
            list(values),
            [optimizer.slot_initializer(name) for name in values],
        )
    if not isinstance(made, Mapping) or set(made) != set(values):
        raise errors.ArgumentError(
            f"`slot_variable_creation_fn` of table {table!r} must return a "
            f"dict of the slots {list(values)}; got "
            f"{sorted(made) if isinstance(made, Mapping) else made!r}."
        )
    slots = {name: private.without_mark(made[name]) for name in values}
    for name, slot in slots.items():
        shape = optimizer.slot_shape(name, tuple(parameters.shape))
        what = f"slot {name!r} of table {table!r}"
        if is_single and isinstance(slot, tf.distribute.DistributedValues):
            raise errors.ArgumentError(
                f"`slot_variable_creation_fn` must make {what} when it is "
                "called; got a variable that a strategy mirrors."
            )
        _check(slot, shape, what)
    _track(
        owner,
        table,
        {name: slot for name, slot in slots.items() if slot is made[name]},
    )
    return slots


@contextlib.contextmanager
def _one_copy() -> Iterator[None]:
    with tf.device(HOST), tf.variable_creator_scope(_make_single):
        yield


def _track(owner: Any, table: str, slots: Mapping[str, Any]) -> None:
    if not slots:
        return
    tables = private.tracked(owner, "_variables")
    if tables is None:
        tables = private.track(owner, "_variables", private.Folder())
    folder = private.track(tables, table, private.Folder())
    for name, slot in slots.items():
        private.track(folder, name, slot)


def _make_single(next_creator: Any, **arguments: Any) -> Any:
    # A strategy would mirror the variable: it is not asked.
    del next_creator
    known = private.SINGLE_VARIABLE_ARGUMENTS
    return private.single_variable(
        **{name: arguments[name] for name in known if name in arguments}
    )


def _check(slot: Any, shape: tuple[int, ...], what: str) -> None:
    is_variable = isinstance(slot, tf.Variable)
    if is_variable and slot.dtype == tf.float32 and slot.shape == shape:
        return
    raise errors.ArgumentError(
        f"`slot_variable_creation_fn` must make {what} a float32 tf.Variable "
        f"of shape {list(shape)}; got {slot!r}."
    )
