"""The tables of the host engine: one copy each, in host memory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.embedding import private
from tfembed.embedding.steps.batch_queue import HOST
from tfembed.tables import HashTable
from tfembed.units import as_bytes

__all__ = [
    "HostTable",
    "TableSize",
    "create",
    "hash_table_of",
    "make_static_table",
    "make_table",
]


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


@dataclasses.dataclass(frozen=True)
class TableSize:
    """The size of a table: its rows and its memory.

    Attributes:
      rows: the vocabulary of a static table, else the number of ids that it has.
      bytes: the bytes of the rows, their slots and, without a vocabulary, the
        index.
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
      slots: the slots by name, variables of the same shape, or [vocabulary_size,
        1]; a HashTable keeps its own.
    """

    parameters: Any
    slots: dict[str, Any]

    @property
    def counts_steps(self) -> bool:
        """Whether rows expire after so many training steps."""
        table = self.parameters
        return isinstance(table, HashTable) and table.counts_steps

    def note_training_step(self) -> None:
        """Counts a step of a table that `counts_steps`; rows expire in time."""
        self.parameters.note_training_step()

    def in_words(self) -> str:
        """Says what the table maps, holds and takes, as far as that is at hand."""
        # Of a Variable its HashTable.
        rows = getattr(self.parameters, "table", self.parameters)
        if isinstance(rows, HashTable):
            return rows.in_words()
        shape = f"{list(self.parameters.shape)}"
        return f"float32 {shape}, {as_bytes(self.size(0).bytes)}"

    def size(self, nonfinite_rows: int) -> TableSize:
        """Rows and bytes; eager only."""
        if isinstance(self.parameters, HashTable):
            stats = self.parameters.memory()
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
      optimizer: the optimizer whose slots it has; None for no slots.
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
        slots = create(
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
    table = hash_table_of(config, config.dim, config.name, optimizer)
    return private.track(owner, config.name, table)


def hash_table_of(
    config: Any,
    dim: int,
    name: str,
    optimizer: optimizers.Optimizer | None,
    devices: Sequence[str] = (HOST,),
) -> HashTable:
    """Makes a table without a vocabulary.

    Args:
      config: a TableConfig, of a TPUEmbedding or of an estimator.
      dim: the width of a row.
      name: the table's name.
      optimizer: the update rule; None for a table that is not trained.
      devices: where the table's shards lie.
    """
    table = HashTable(
        dim,
        key_dtype=config.key_dtype,
        value_dtype=config.dtype,
        stochastic_rounding=config.stochastic_rounding,
        name=name,
        devices=devices,
        initializer=config.initializer,
        seed=config.seed,
        admission=config.admission,
        eviction=config.eviction,
        expiry=config.expiry,
        max_size=config.max_size,
    )
    if optimizer is not None:
        table.attach(optimizer)
    return table


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
