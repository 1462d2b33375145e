"""The tables of the host engine: one copy each, in host memory."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.embedding import private
from tfembed.embedding.host import created_slots
from tfembed.embedding.steps.batch_queue import HOST
from tfembed.tables import HashTable

__all__ = ["HostTable", "TableSize", "make_static_table", "make_table"]


@dataclasses.dataclass(frozen=True)
class TableSize:
    """What a table holds and takes.

    Attributes:
      rows: of a static table its vocabulary, else the ids that it has.
      bytes: of the rows, their slots and, without a vocabulary, the index.
      nonfinite_rows: the updates of rows that had a NaN or an infinity in their
        summed gradient, since the table was made.
    """

    rows: int
    bytes: int
    nonfinite_rows: int

    @property
    def bytes_per_row(self) -> float:
        """All bytes over all rows; 0 for an empty table."""
        return self.bytes / self.rows if self.rows else 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class HostTable:
    """A table's rows and their slots.

    Attributes:
      parameters: a variable [vocabulary_size, dim], or a HashTable.
      slots: by name, variables of the same shape, or [vocabulary_size, 1]; a
        HashTable keeps its own.
    """

    parameters: Any
    slots: dict[str, Any]

    def note_training_step(self) -> None:
        """Lets the rows of a table without a vocabulary expire in time."""
        if isinstance(self.parameters, HashTable):
            self.parameters.note_training_step()

    def size(self, nonfinite_rows: int) -> TableSize:
        """Rows and bytes; eager only."""
        if isinstance(self.parameters, HashTable):
            stats = self.parameters.stats()
            total = stats.index_bytes + stats.row_bytes
            return TableSize(stats.size, total, nonfinite_rows)
        floats = [self.parameters, *self.slots.values()]
        total = 4 * sum(part.shape.num_elements() for part in floats)
        return TableSize(self.parameters.shape[0], total, nonfinite_rows)


def make_table(
    owner: Any, config: Any, optimizer: optimizers.Optimizer | None
) -> HostTable:
    """Makes a table, tracked by `owner` under TensorFlow's checkpoint names.

    A checkpoint that `owner` was restored from before gives the rows at once.

    Args:
      owner: the trackable object that saves the table, as `<name>`, and the
        slots of a static one, as `<name>/<slot>`.
      config: its TableConfig, named.
      optimizer: whose slots it has; None for no slots.
    """
    if config.vocabulary_size is None:
        return HostTable(_hash_table(owner, config, optimizer), {})
    return make_static_table(owner, config, optimizer, _single_on_host)


def make_static_table(
    owner: Any,
    config: Any,
    optimizer: optimizers.Optimizer | None,
    new_variable: Callable[..., Any],
) -> HostTable:
    """Makes the variables of a table with a vocabulary, tracked by `owner`.

    Args:
      owner, config, optimizer: as for `make_table`.
      new_variable: makes one, with the arguments of tf.Variable.
    """
    shape = (config.vocabulary_size, config.dim)
    parameters = _variable(
        owner, config.name, shape, config.initializer, True, new_variable
    )
    if optimizer is None:
        return HostTable(parameters, {})
    if optimizer.slot_variable_creation_fn is not None:
        is_single = new_variable is _single_on_host
        slots = created_slots.create(
            owner, parameters, config.name, optimizer, is_single=is_single
        )
        return HostTable(parameters, slots)
    return HostTable(
        parameters,
        {
            name: _variable(
                owner,
                f"{config.name}/{name}",
                optimizer.slot_shape(name, shape),
                optimizer.slot_initializer(name),
                False,
                new_variable,
            )
            for name in optimizer.slot_names
        },
    )


def _single_on_host(**arguments: Any) -> Any:
    with tf.device(HOST):
        return private.single_variable(**arguments)


def _hash_table(owner: Any, config: Any, optimizer: Any) -> HashTable:
    table = HashTable(
        config.dim,
        key_dtype=config.key_dtype,
        value_dtype=config.dtype,
        stochastic_rounding=config.stochastic_rounding,
        name=config.name,
        initializer=config.initializer,
        seed=config.seed,
        admission=config.admission,
        eviction=config.eviction,
        expiry=config.expiry,
        max_size=config.max_size,
    )
    if optimizer is not None:
        table.attach(optimizer)
    return private.track(owner, config.name, table)


def _variable(
    owner: Any,
    name: str,
    shape: tuple[int, int],
    initializer: Callable[..., tf.Tensor],
    trainable: bool,
    new_variable: Callable[..., Any],
) -> Any:
    _check_is_called(initializer, name)

    def getter(initializer: Callable[..., tf.Tensor], **arguments: Any) -> Any:
        # TensorFlow passes an initializer that restores where it can, and then
        # no shape.
        arguments["shape"] = shape
        value = functools.partial(initializer, shape, dtype=tf.float32)
        try:
            return new_variable(initial_value=value, **arguments)
        except ValueError as error:
            raise errors.ArgumentError(
                f"Variable {name!r}, float32 {list(shape)}, cannot be made of "
                "what its initializer, or the checkpoint that is restored, "
                f"gives: {error}"
            ) from error

    return private.add_variable(
        owner,
        name=name,
        shape=shape,
        dtype=tf.float32,
        initializer=initializer,
        getter=getter,
        trainable=trainable,
    )


def _check_is_called(initializer: Callable[..., Any], name: str) -> None:
    """Refuses functions of a shape alone, which could not be called."""
    try:
        inspect.signature(initializer).bind((1, 1), dtype=tf.float32)
    except TypeError:
        raise errors.ArgumentError(
            f"The initializer of {name!r} is called as initializer(shape, "
            f"dtype=tf.float32), which {initializer!r} does not take."
        ) from None
    except ValueError:  # Nothing is known of it.
        return
