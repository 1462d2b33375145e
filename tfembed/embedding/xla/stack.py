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
    """Such tables, as each replica has them.

    Attributes:
      tables: their indices in the plan.
      table_rows: the rows of each on a replica.
      replicas: how many share the rows.
      width: the width of the rows.
      rule: the update rule, or None.
      buffer: ids to one replica in a round; 0: as many as mostly suffice.
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
        """The rows of all tables on a replica."""
        return sum(self.table_rows)

    def shapes(self) -> list[tuple[int, int]]:
        """The shapes of the values, then of each slot."""
        shape = (self.rows, self.width)
        if self.rule is None:
            return [shape]
        slots = [self.rule.slot_shape(s, shape) for s in self.rule.slot_names]
        return [shape, *slots]

    def first(self, table: int) -> int:
        """The first row of a table in the stack."""
        return sum(self.table_rows[: self.tables.index(table)])

    def ids(self, table: int, ids: tf.Tensor) -> tf.Tensor:
        """Ids of a table as those of the stack; negative ones have no row."""
        return tf.where(ids >= 0, ids + self.replicas * self.first(table), ids)

    def exchange_for(self, ids: int) -> exchange.Exchange:
        """Makes an exchange for this many ids; one replica needs no buffer."""
        if self.buffer or self.replicas == 1:
            return exchange.Exchange(
                self.replicas, self.buffer or 1, self.portable
            )
        return exchange.Exchange.for_ids(
            self.replicas, ids, portable=self.portable
        )

    def look_up(self, rows: StackRows, ids: tf.Tensor) -> exchange.Found:
        """The rows of ids of the stack."""
        return exchange.lookup(
            rows.values, ids, self.exchange_for(ids.shape[0])
        )

    def sum_gradients(
        self, ids: tf.Tensor, gradients: tf.Tensor
    ) -> exchange.Found:
        """The summed gradients of all rows, by ids of the stack."""
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
        """Trains the rows of ids of the stack."""
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
    """The stacks of a plan: of one width, update rule and learning rate.

    Tables of more than MOST_ROWS rows together are several stacks.

    Args:
      plan: the plan of tables with a vocabulary.
      replicas, buffer, portable: as for Stack.

    Raises:
      tfembed.errors.ArgumentError: `check_rows`.
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
    """Raises tfembed.errors.ArgumentError where a TableConfig has too many."""
    if config.vocabulary_size <= MOST_ROWS:
        return
    raise errors.ArgumentError(
        f"Table {config.name!r} has {config.vocabulary_size:,} rows; in device "
        f"memory a table has at most {MOST_ROWS:,}, since ids are int32 there. "
        "Split it into several, or use engine='host'."
    )


@dataclasses.dataclass(frozen=True, eq=False)
class StackVariables:
    """The variables that an engine keeps for a stack.

    Attributes:
      stack: the tables.
      values: a variable of `stack.shapes()[0]`.
      slots: variables of the shapes behind it.
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
        """Keeps what an update made of them."""
        self.values.assign(updated.values)
        for slot, value in zip(self.slots, updated.slots, strict=True):
            slot.assign(value)


def _read(variable: Any) -> tf.Tensor:
    # The tables are trained by apply_gradients: no tape watches them.
    if isinstance(variable, tf.distribute.DistributedValues):
        return variable.read_value()
    return tf.raw_ops.ReadVariableOp(
        resource=variable.handle, dtype=variable.dtype
    )
