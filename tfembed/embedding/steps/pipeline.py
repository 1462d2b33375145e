"""Steps that overlap: the tables work while the model computes.

    step t      lookup(t+1), update(t-1)  beside  the model on activations(t)

A step's update is applied in the next step's apply_gradients, which does not
need that step's gradients to begin: in a function it runs once the activations
are computed, beside the model. After it, the next enqueued batch is looked up
for the next dequeue. So a lookup sees all updates but the last one, as in the
embedding pipeline of a TPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.embedding.features.inputs import InputSpec
from tfembed.embedding.steps.batch_queue import HOST, Batch, BatchQueue
from tfembed.embedding.steps.step_queue import StepQueue

__all__ = ["LookupAhead", "UpdateBehind", "warn_of_early_flush"]

_LOG = logging.getLogger(__name__)

Update = Callable[[Batch, list[tf.Tensor]], None]
LookUp = Callable[[Batch], list[tf.Tensor]]


def warn_of_early_flush() -> None:
    """Warns of a function that was traced before there was an update."""
    _LOG.warning(
        "A function that evaluates (or flushes) is traced before any function or "
        "step that trains with pipeline_execution_with_tensor_core. It cannot "
        "apply the update that waits, so it sees all updates but the last: train "
        "a step before you trace it, or call `flush()` eagerly before it."
    )


class UpdateBehind:
    """The pending update of a name's last step, for all replicas.

    Args:
      specs: the specs of the features of all replicas.
      shapes: the shapes of the additional tensors of a batch.
    """

    def __init__(
        self, specs: Sequence[InputSpec], shapes: Sequence[tf.TensorShape]
    ) -> None:
        self._queue = BatchQueue(specs, shapes)

    @property
    def resources(self) -> list[Any]:
        """Returns the queue's resources, which exported functions capture."""
        return [self._queue.resource]

    def exchange(
        self, batch: Batch, tensors: Sequence[tf.Tensor], update: Update
    ) -> None:
        """Applies the pending update and stores a new one.

        The new one is stored even if the pending one is refused.
        """
        pushed = self._queue.push(batch, tensors)
        with tf.control_dependencies([] if pushed is None else [pushed]):
            self._apply_above(1, update)

    def flush(self, update: Update) -> None:
        """Applies the pending update, if there is one."""
        self._apply_above(0, update)

    def _apply_above(self, most: int, update: Update) -> None:
        """Applies the oldest update if there are more than `most`."""

        def apply() -> tf.Tensor:
            update(*self._queue.pop())
            return tf.constant(0)

        with tf.device(HOST):
            tf.cond(self._queue.size() > most, apply, lambda: tf.constant(0))

    def is_idle(self) -> bool:
        """Says whether no update is pending; eager only."""
        return not int(self._queue.size())

    def clear(self) -> None:
        """Drops the update; eager only."""
        self._queue.clear()


class LookupAhead:
    """The activations of the next batch of a replica and name.

    Args:
      specs: the specs of the features.
      shapes: the shapes of the activations.
    """

    def __init__(
        self, specs: Sequence[InputSpec], shapes: Sequence[tf.TensorShape]
    ) -> None:
        self._specs = tuple(specs)
        self._queue = BatchQueue(specs, shapes)

    @property
    def resources(self) -> list[Any]:
        """Returns the queue's resources, which exported functions capture."""
        return [self._queue.resource]

    def look_ahead(self, steps: StepQueue, look_up: LookUp) -> None:
        """Looks up the next batch if it is enqueued already."""

        def fetch() -> tf.Tensor:
            batch = steps.take()
            self._queue.push(batch, look_up(batch))
            return tf.constant(0)

        with tf.device(HOST):
            is_wanted = tf.logical_and(
                steps.size() > 0, tf.equal(self._queue.size(), 0)
            )
            tf.cond(is_wanted, fetch, lambda: tf.constant(0))

    def next(
        self, steps: StepQueue, look_up: LookUp
    ) -> tuple[Batch, list[tf.Tensor]]:
        """Returns the oldest batch and its activations.

        Raises:
          tf.errors.InvalidArgumentError: as `StepQueue.take`.
        """

        def looked_up() -> Any:
            batch, activations = self._queue.pop()
            return batch.tensors, activations

        def look_up_now() -> Any:
            batch = steps.take()
            return batch.tensors, look_up(batch)

        dropped = steps.drop_idle()
        after = [] if dropped is None else [dropped]
        with tf.device(HOST), tf.control_dependencies(after):
            tensors, activations = tf.cond(
                self._queue.size() > 0, looked_up, look_up_now
            )
        return Batch.of_tensors(tensors, self._specs), list(activations)

    def is_idle(self) -> bool:
        """Says whether no looked-up batch is stored; eager only."""
        return not int(self._queue.size())

    def clear(self) -> None:
        """Drops the batch; eager only."""
        self._queue.clear()
