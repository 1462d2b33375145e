"""Tables of one width and update rule, one after another in the same rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfembed.embedding.plan import EmbeddingPlan
from tfembed.ops import exchange

__all__ = ["Stack", "stacked_tables"]


@dataclasses.dataclass(frozen=True, eq=False)
class Stack:
    """Such tables, as a replica sees them.

    Attributes:
      tables: their places in the plan.
      table_rows: the rows of each on a replica.
      replicas: how many share the rows.
      values: a variable [rows, dim], this replica's rows of all tables.
      slots: variables [rows, dim] or [rows, 1], in the rule's order.
      rule: the update rule, or None.
    """

    tables: tuple[int, ...]
    table_rows: tuple[int, ...]
    replicas: int
    values: Any
    slots: tuple[Any, ...]
    rule: Any

    def ids(self, table: int, ids: tf.Tensor) -> tf.Tensor:
        """Ids of a table as those of the stack; negative ones have no row."""
        rows = self.table_rows[: self.tables.index(table)]
        return tf.where(ids >= 0, ids + self.replicas * sum(rows), ids)

    def exchange_for(self, ids: tf.Tensor) -> exchange.Exchange:
        """One that fits this many ids; a single replica needs no buffer."""
        if self.replicas == 1:
            return exchange.Exchange(replicas=1, buffer=1)
        return exchange.Exchange.for_ids(self.replicas, ids.shape[0])

    def look_up(self, ids: tf.Tensor) -> exchange.Found:
        """The rows of ids of the stack."""
        return exchange.lookup(_read(self.values), ids, self.exchange_for(ids))

    def update(
        self,
        ids: tf.Tensor,
        gradients: tf.Tensor,
        rate: tf.Tensor,
        nonfinite: str,
    ) -> exchange.Updated:
        """Trains the rows of ids of the stack."""
        updated = exchange.update(
            _read(self.values),
            [_read(slot) for slot in self.slots],
            ids,
            gradients,
            rate,
            self.exchange_for(ids),
            rule=self.rule.rule_text(),
            table_rows=self.table_rows,
            nonfinite=nonfinite,
        )
        self.values.assign(updated.values)
        for slot, value in zip(self.slots, updated.slots, strict=True):
            slot.assign(value)
        return updated


def _read(variable: Any) -> tf.Tensor:
    # The tables are trained by apply_gradients: no tape watches them.
    if isinstance(variable, tf.distribute.DistributedValues):
        return variable.read_value()
    return tf.raw_ops.ReadVariableOp(
        resource=variable.handle, dtype=variable.dtype
    )


def stacked_tables(plan: EmbeddingPlan) -> list[tuple[int, ...]]:
    """Which tables make a stack: of one width, update rule and learning rate."""
    stacks: dict[Any, list[int]] = {}
    for i, (config, rule) in enumerate(
        zip(plan.tables, plan.optimizers, strict=True)
    ):
        how = None if rule is None else (rule.rule_text(), rule.learning_rate)
        stacks.setdefault((config.dim, how), []).append(i)
    return [tuple(tables) for tables in stacks.values()]
