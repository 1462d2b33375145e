"""The xla engine under a TPUStrategy: rows spread over the replicas.

One trace of the step serves all replicas. Its program holds the exchange, so that
enqueue, dequeue and apply_gradients are inside of strategy.run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.host.tables import HostTable
from tfembed.embedding.replicas import THIS_REPLICA
from tfembed.embedding.steps.batch_queue import Batch
from tfembed.embedding.xla.engine import XlaEngine
from tfembed.embedding.xla.sharded_table import ShardedVariables
from tfembed.embedding.xla.stack import Stack, StackVariables, stacks_of

__all__ = ["XlaShardedEngine"]


class XlaShardedEngine(XlaEngine):
    """Tables of one width, update rule and learning rate share an exchange.

    Each stack is one variable per replica, and one more per slot. Arguments and
    errors are those of XlaEngine.
    """

    def _make_tables(self, owner: Any) -> list[HostTable]:
        strategy = tf.distribute.get_strategy()
        self._variables = ShardedVariables(owner, strategy)
        replicas = int(strategy.num_replicas_in_sync)
        self._made: list[StackVariables] = []
        found: dict[int, HostTable] = {}
        for stack in stacks_of(self._plan, replicas):
            variables, parts = self._new_stack(stack)
            self._made.append(variables)
            found.update(zip(stack.tables, parts, strict=True))
        return [found[i] for i in range(len(found))]

    def _new_counts(self) -> Any:
        return self._variables.per_replica(
            tf.zeros([len(self._plan.tables)], tf.int64),
            "nonfinite_rows",
            tf.VariableAggregation.SUM,
        )

    def _stacks(self) -> list[StackVariables]:
        return self._made

    def _new_rounds(self) -> Any:
        # All replicas go through as many.
        return self._variables.per_replica(
            tf.zeros([len(self._made)], tf.int32), "rounds"
        )

    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """Returns the most rounds of each stack, by the names of its tables."""
        return {
            tuple(self._plan.tables[i].name for i in one.stack.tables): int(n)
            for one, n in zip(self._made, self._rounds.numpy(), strict=True)
        }

    def _check_replicas(self, batches: Mapping[int, Batch]) -> None:
        if THIS_REPLICA not in batches:
            raise errors.StateError(
                "engine='xla' looks up inside of the TPU's step: call enqueue "
                "inside of strategy.run, in the function that dequeues."
            )

    def _new_stack(
        self, stack: Stack
    ) -> tuple[StackVariables, list[HostTable]]:
        configs = [self._plan.tables[i] for i in stack.tables]
        rule = stack.rule
        label = "_".join(config.name for config in configs)
        shape, *slot_shapes = stack.shapes()
        values = self._variables.per_replica(tf.zeros(shape), label)
        slots = {
            name: self._variables.per_replica(
                tf.zeros(slot_shape), f"{label}/{name}"
            )
            for name, slot_shape in zip(
                rule.slot_names if rule is not None else (),
                slot_shapes,
                strict=True,
            )
        }
        variables = StackVariables(stack, values, tuple(slots.values()))
        parts = []
        for index, config in enumerate(configs):
            first = sum(stack.table_rows[:index])
            shape = (config.vocabulary_size, config.dim)
            parameters = self._variables.table(
                values, first, shape, config.name, config.initializer
            )
            of_slots = {
                name: self._variables.table(
                    slot,
                    first,
                    rule.slot_shape(name, shape),
                    f"{config.name}/{name}",
                    rule.slot_initializer(name),
                )
                for name, slot in slots.items()
            }
            parts.append(HostTable(parameters, of_slots))
        return variables, parts
