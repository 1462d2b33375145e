"""Tables of one width and update rule, one after another in the same rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.ops import exchange

__all__ = [
    "MOST_ROWS",
    "Stack",
    "StackRows",
    "StackVariables",
    "check_rows",
    "stacks_of",
]

# The most rows of a stack, on all replicas: ids are int32 in device memory.
MOST_ROWS = 2_000_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class StackRows:
    """The rows and slots that a replica keeps for a stack.

    Attributes:
      values: float32 [rows, width], of all tables.
      slots: float32 [rows, width] or [rows, 1], in the rule's order.
    """

    values: Any
    slots: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Stack:
    """Tables of one width and update rule, as each replica has them.

    Attributes:
      tables: the tables' indices in the plan.
      table_rows: the rows of each table on a replica.
      replicas: the number of replicas that share the rows.
      width: the width of the rows.
      rule: the update rule, or None.
      buffer: the ids per target replica in a round; 0: a number that usually
        suffices for one round.
      portable: whether programs run without this library (ops.exchange).
    """

    tables: tuple[int, ...]
    table_rows: tuple[int, ...]
    replicas: int
    width: int
    rule: Any
    buffer: int = 0
    portable: bool = False

    @property
    def rows(self) -> int:
        """The number of rows of all tables on a replica."""
        return sum(self.table_rows)

    def shapes(self) -> list[tuple[int, int]]:
        """Returns the shape of the values, then that of each slot."""
        shape = (self.rows, self.width)
        if self.rule is None:
            return [shape]
        slots = [self.rule.slot_shape(s, shape) for s in self.rule.slot_names]
        return [shape, *slots]

    def first(self, table: int) -> int:
        """Returns the first row of a table in the stack."""
        return sum(self.table_rows[: self.tables.index(table)])

    def ids(self, table: int, ids: tf.Tensor) -> tf.Tensor:
        """Converts a table's ids to the stack's; negative ids have no row."""
        return tf.where(ids >= 0, ids + self.replicas * self.first(table), ids)

    def exchange_for(self, ids: int) -> exchange.Exchange:
        """Makes an exchange for so many ids; one replica needs no buffer."""
        if self.buffer or self.replicas == 1:
            return exchange.Exchange(
                self.replicas, self.buffer or 1, self.portable
            )
        return exchange.Exchange.for_ids(
            self.replicas, ids, portable=self.portable
        )

    def look_up(self, rows: StackRows, ids: tf.Tensor) -> exchange.Found:
        """Looks up ids of the stack."""
        return exchange.lookup(
            rows.values, ids, self.exchange_for(ids.shape[0])
        )

    def sum_gradients(
        self, ids: tf.Tensor, gradients: tf.Tensor
    ) -> exchange.Found:
        """Returns the summed gradients of all rows, from ids of the stack."""
        return exchange.sum_gradients(
            ids, gradients, self.rows, self.exchange_for(ids.shape[0])
        )

    def update(
        self,
        rows: StackRows,
        ids: tf.Tensor,
        gradients: tf.Tensor,
        rate: tf.Tensor | float,
        nonfinite: str,
    ) -> exchange.Updated:
        """Updates the rows of ids of the stack."""
        return exchange.update(
            rows.values,
            rows.slots,
            ids,
            gradients,
            rate,
            self.exchange_for(ids.shape[0]),
            rule=self.rule.rule_text(),
            table_rows=self.table_rows,
            nonfinite=nonfinite,
        )


def stacks_of(
    plan: EmbeddingPlan,
    replicas: int,
    *,
    buffer: int = 0,
    portable: bool = False,
) -> list[Stack]:
    """Groups tables of one width, update rule and learning rate into stacks.

    Tables with more than MOST_ROWS rows together are split into several stacks.

    Args:
      plan: the plan of tables with a vocabulary.
      replicas, buffer, portable: as for Stack.

    Raises:
      tfembed.errors.ArgumentError: as `check_rows`.
    """
    found: dict[Any, list[list[int]]] = {}
    for i, (config, rule) in enumerate(
        zip(plan.tables, plan.optimizers, strict=True)
    ):
        check_rows(config)
        how = None if rule is None else (rule.rule_text(), rule.learning_rate)
        stacks = found.setdefault((config.dim, how), [[]])
        rows = sum(plan.tables[j].vocabulary_size for j in stacks[-1])
        if rows + config.vocabulary_size > MOST_ROWS:
            stacks.append([])
        stacks[-1].append(i)
    return [
        Stack(
            tuple(tables),
            tuple(
                exchange.shard_rows(plan.tables[i].vocabulary_size, replicas)
                for i in tables
            ),
            replicas,
            width,
            plan.optimizers[tables[0]],
            buffer,
            portable,
        )
        for (width, _), stacks in found.items()
        for tables in stacks
    ]


def check_rows(config: Any) -> None:
    """Raises tfembed.errors.ArgumentError if a table has too many rows."""
    if config.vocabulary_size <= MOST_ROWS:
        return
    raise errors.ArgumentError(
        f"Table {config.name!r} has {config.vocabulary_size:,} rows; in device "
        f"memory a table has at most {MOST_ROWS:,}, since ids are int32 there. "
        "Split it into several, or use engine='host'."
    )


@dataclasses.dataclass(frozen=True, eq=False)
class StackVariables:
    """The variables of a stack.

    Attributes:
      stack: the stack.
      values: a variable of shape `stack.shapes()[0]`.
      slots: variables of the other shapes of `stack.shapes()`.
    """

    stack: Stack
    values: Any
    slots: tuple[Any, ...]

    def read(self) -> StackRows:
        """Reads this replica's rows."""
        return StackRows(
            _read(self.values), tuple(_read(slot) for slot in self.slots)
        )

    def assign(self, updated: exchange.Updated) -> None:
        """Assigns an update's values and slots to the variables."""
        self.values.assign(updated.values)
        for slot, value in zip(self.slots, updated.slots, strict=True):
            slot.assign(value)


def _read(variable: Any) -> tf.Tensor:
    # apply_gradients trains the tables, so no tape must watch them.
    if isinstance(variable, tf.distribute.DistributedValues):
        return variable.read_value()
    return tf.raw_ops.ReadVariableOp(
        resource=variable.handle, dtype=variable.dtype
    )
