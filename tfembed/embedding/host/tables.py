"""The tables of the host engine: one copy of each, in host memory."""

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
    """Makes the slots of a static table by the optimizer's function.

    Args:
      owner: the trackable object that saves the slots, under the keys of
        TensorFlow's TPUEmbedding, `_variables/<table>/<slot>`. It does not save
        slots that the function marks by tf.Module's `_no_dependency`.
      parameters: the table's variable.
      table: the table's name.
      optimizer: an optimizer with a `slot_variable_creation_fn`.
      is_single: whether to make one copy of each slot, regardless of the
        strategy in scope; else the strategy makes them.

    Returns:
      The slots by name, in the rule's order.

    Raises:
      tfembed.errors.ArgumentError: not a dict of exactly the slots, or a slot
        that is not a float32 tf.Variable of the slot's shape.
    """
    values = optimizer.slot_initial_values
    creator = optimizer.slot_variable_creation_fn
    assert creator is not None  # The caller checked it.
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
    # Bypasses the strategy, which would mirror the variable.
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
      rows: the vocabulary size of a static table, else the number of its ids.
      bytes: the bytes of the rows, their slots and, without a vocabulary, the
        index.
      nonfinite_rows: the count of row updates with a non-finite summed
        gradient, since the table was made.
    """

    rows: int
    bytes: int
    nonfinite_rows: int

    @property
    def bytes_per_row(self) -> float:
        """All bytes divided by all rows; 0 for an empty table."""
        return self.bytes / self.rows if self.rows else 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class HostTable:
    """A table's rows and their slots.

    Attributes:
      parameters: a variable [vocabulary_size, dim], or a HashTable.
      slots: the slots by name, variables of the same shape, or
        [vocabulary_size, 1]; a HashTable keeps its own.
    """

    parameters: Any
    slots: dict[str, Any]

    @property
    def counts_steps(self) -> bool:
        """Whether rows expire after a number of training steps."""
        table = self.parameters
        return isinstance(table, HashTable) and table.counts_steps

    def note_training_step(self) -> None:
        """Counts a step if the table `counts_steps`; expires rows if due."""
        self.parameters.note_training_step()

    def in_words(self) -> str:
        """Describes the table, with rows and bytes if they are available."""
        # For a Variable, its HashTable.
        rows = getattr(self.parameters, "table", self.parameters)
        if isinstance(rows, HashTable):
            return rows.in_words()
        shape = f"{list(self.parameters.shape)}"
        return f"float32 {shape}, {as_bytes(self.size(0).bytes)}"

    def size(self, nonfinite_rows: int) -> TableSize:
        """Returns rows and bytes; eager only."""
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

    If `owner` was restored from a checkpoint before, the table gets its rows at
    once.

    Args:
      owner: the trackable object that saves the table as `<name>`, and the
        slots of a static table as `<name>/<slot>`.
      config: the TableConfig, named.
      optimizer: the optimizer whose slots the table gets; None for no slots.
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
      new_variable: makes a variable, with the arguments of tf.Variable.
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
      devices: the devices of the table's shards.
    """
    table = HashTable(
        dim,
        key_dtype=config.key_dtype,
        value_dtype=config.dtype,
        stochastic_rounding=config.stochastic_rounding,
        name=name,
        devices=devices,
        initializer=config.initializer,
        fan_in=config.fan_in,
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
        # If a checkpoint is pending, TensorFlow passes an initializer that
        # restores, and no shape.
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
    """Refuses initializers that cannot be called with (shape, dtype=)."""
    try:
        inspect.signature(initializer).bind((1, 1), dtype=tf.float32)
    except TypeError:
        raise errors.ArgumentError(
            f"The initializer of {name!r} is called as initializer(shape, "
            f"dtype=tf.float32), which {initializer!r} does not take."
        ) from None
    except ValueError:  # It has no signature to check.
        return
