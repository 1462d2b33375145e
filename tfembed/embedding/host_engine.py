"""The host engine: tables in host memory, looked up and updated by CPU ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, ops
from tfembed.embedding import private, step_format
from tfembed.embedding.host_tables import HostTable, TableSize, make_table
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.step_format import StepFormat
from tfembed.embedding.step_queue import HOST, Batch, StepQueue

__all__ = ["HostEngine"]


class HostEngine:
    """Looks up all features of a batch in one op, and updates them in another.

    Each (replica, name) has a queue of batches (`step_queue.py`). The tables
    are there once; a step's update sums the gradients of all replicas and
    touches each row once. Not thread-safe, as little as a training step is.

    Args:
      owner: the trackable object that saves the tables.
      plan: the features and tables.
      nonfinite: "skip", "refuse" or "allow" (`ops.grouped_update`).
    """

    def __init__(self, owner: Any, plan: EmbeddingPlan, nonfinite: str) -> None:
        self._plan = plan
        self._nonfinite = nonfinite
        self._formats: dict[str | None, list[StepFormat]] = {}
        self._queues: dict[tuple[int, str | None], StepQueue] = {}
        self.tables: list[HostTable] = [
            make_table(owner, config, optimizer)
            for config, optimizer in zip(
                plan.tables, plan.optimizers, strict=True
            )
        ]
        with tf.device(HOST):
            self._nonfinite_rows = private.single_variable(
                initial_value=tf.zeros([len(self.tables)], tf.int64),
                trainable=False,
                name="nonfinite_rows",
            )

    def enqueue(
        self,
        name: str | None,
        batches: Mapping[int, Batch],
        formats: Sequence[list[StepFormat]],
    ) -> None:
        """Takes batches in, for later calls of `dequeue` of the same name.

        Args:
          name: pairs the calls.
          batches: by replica.
          formats: how each of them is read.

        Raises:
          tfembed.errors.ArgumentError: other formats than before. Nothing is
            taken in.
        """
        known = self._formats.get(name, formats[0])
        for one in formats:
            step_format.check_same_format(self._plan.paths, known, one)
        self._formats[name] = known
        for replica, batch in batches.items():
            self._queue(replica, name).put(batch)

    def dequeue(self, replica: int, name: str | None) -> list[tf.Tensor]:
        """The activations of the oldest batch that was enqueued.

        Returns:
          Per feature [B, dim], or [B, L, dim] where it is read as a sequence.

        Raises:
          tfembed.errors.StateError: nothing was ever enqueued under this name.
          tf.errors.InvalidArgumentError: nothing is enqueued now, or an id
            cannot be in its table; when it runs.
        """
        queue = self._queue(replica, name)
        with tf.device(HOST):
            batch = queue.take()
            activations = ops.grouped_lookup(
                self._resources(),
                self._plan.dims,
                batch.features,
                step_format.lookup_plans(self._plan, self._formats[name]),
            )
            # A batch that cannot be looked up is not kept.
            with tf.control_dependencies(activations):
                queue.hold(batch)
        # The tables are trained by apply_gradients, not by a tape.
        return [tf.stop_gradient(activation) for activation in activations]

    def apply_gradients(
        self, name: str | None, gradients: Sequence[Sequence[tf.Tensor]]
    ) -> None:
        """Updates the rows of the batches that were dequeued last.

        Args:
          name: that of their dequeue.
          gradients: per replica and feature, in the shape of the activations.

        Raises:
          tfembed.errors.StateError: nothing was enqueued under this name, or a
            table has no optimizer.
          tf.errors.InvalidArgumentError: nothing was dequeued for training, or
            a gradient is refused; when it runs.
        """
        rules = self._rules()
        queues = [self._queue(r, name) for r in range(len(gradients))]
        plans = step_format.lookup_plans(self._plan, self._formats[name])
        with tf.device(HOST):
            batches = [queue.finish() for queue in queues]
            nonfinite = ops.grouped_update(
                self._resources(),
                [s for table in self.tables for s in table.slots.values()],
                self._plan.dims,
                [one for batch in batches for one in batch.features],
                plans * len(batches),
                [gradient for each in gradients for gradient in each],
                rules=[rule.rule_text() for rule in rules],
                learning_rates=_learning_rates(rules),
                nonfinite=self._nonfinite,
            )
            self._nonfinite_rows.assign_add(nonfinite)
            for table in self.tables:
                table.note_training_step()

    def formats(self, name: str | None) -> list[StepFormat]:
        """How the features that are enqueued under `name` are read.

        Raises:
          tfembed.errors.StateError: nothing was.
        """
        if name not in self._formats:
            raise errors.StateError(
                f"Nothing was enqueued {_label(name)} yet. Call enqueue, or "
                "trace the function that does, before dequeue and "
                "apply_gradients."
            )
        return self._formats[name]

    def reset(self) -> None:
        """Forgets all batches on their way; eager only."""
        for queue in self._queues.values():
            queue.clear()

    def sizes(self) -> list[TableSize]:
        """Per table what it holds and takes; eager only."""
        counts = self._nonfinite_rows.numpy()
        return [
            table.size(nonfinite_rows=int(count))
            for table, count in zip(self.tables, counts, strict=True)
        ]

    def _queue(self, replica: int, name: str | None) -> StepQueue:
        formats = self.formats(name)
        key = (replica, name)
        if key not in self._queues:
            self._queues[key] = StepQueue(
                [one.kind for one in formats],
                [one.batch_size for one in formats],
                id_dtypes=[one.id_dtype for one in formats],
                label=f"{_label(name)} on replica {replica}",
            )
        return self._queues[key]

    def _resources(self) -> list[tf.Tensor]:
        # Handles, not variables: tapes and functions need not watch them.
        return [table.parameters.handle for table in self.tables]

    def _rules(self) -> list[Any]:
        for config, rule in zip(
            self._plan.tables, self._plan.optimizers, strict=True
        ):
            if rule is None:
                raise errors.StateError(
                    f"Table '{config.name}' has no optimizer, so "
                    "apply_gradients cannot train it. Give one to its "
                    "TableConfig or to TPUEmbedding."
                )
        return list(self._plan.optimizers)


def _label(name: str | None) -> str:
    return "without a name" if name is None else f"under the name {name!r}"


def _learning_rates(rules: Sequence[Any]) -> list[Any]:
    """Each function is called once, as tables share it."""
    rates: dict[Any, Any] = {}
    for rule in rules:
        rate = rule.learning_rate
        if rate not in rates:
            rates[rate] = rate() if callable(rate) else rate
    return [tf.cast(rates[rule.learning_rate], tf.float32) for rule in rules]
