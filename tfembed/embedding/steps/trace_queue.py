"""Batches that are enqueued and used inside of one function that XLA compiles.

No queue of TensorFlow's can be compiled, and none is needed there: tracing itself
hands the tensors on.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.steps.batch_queue import Batch
from tfembed.embedding.steps.step_forms import StepName

__all__ = ["TraceQueues"]


class TraceQueues:
    """The batches of each function that is being traced, by name."""

    def __init__(self) -> None:
        self._of_graphs: Any = weakref.WeakKeyDictionary()

    def put(self, name: StepName, batch: Batch) -> None:
        """Enqueues a batch."""
        self._queue(name, "enqueued").append(batch)

    def take(self, name: StepName) -> Batch:
        """The oldest batch, which is in flight from now on.

        Raises:
          tfembed.errors.StateError: none was enqueued in this function, or the
            one before waits for its gradients.
        """
        waiting = self._queue(name, "in flight")
        # One with a name is dropped, as by a StepQueue.
        if name is None and waiting and _is_for_training(waiting[-1]):
            raise errors.StateError(
                "dequeue finds that the batch dequeued before is still waiting "
                "for its apply_gradients. For evaluation, enqueue with "
                "training=False; for several lookups in one step, give each its "
                "own `name`."
            )
        queue = self._queue(name, "enqueued")
        if not queue:
            raise errors.StateError(
                "dequeue in a function that XLA compiles finds nothing enqueued "
                "in it: call enqueue, dequeue and apply_gradients in the same "
                "function, or dequeue outside of jit_compile=True."
            )
        waiting[:] = [queue.pop(0)]
        return waiting[0]

    def finish(self, name: StepName) -> Batch:
        """Removes the batch in flight.

        Raises:
          tfembed.errors.StateError: there is none, or it is not for training.
        """
        waiting = self._queue(name, "in flight")
        if not waiting:
            raise errors.StateError(
                "apply_gradients in a function that XLA compiles finds no "
                "dequeued batch in it: call enqueue and dequeue in the same "
                "function."
            )
        if not _is_for_training(waiting[0]):
            raise errors.StateError(
                "apply_gradients finds a batch that was enqueued with "
                "training=False. Enqueue it with training=True."
            )
        return waiting.pop()

    def _queue(self, name: StepName, what: str) -> list[Batch]:
        graph = tf.compat.v1.get_default_graph()
        queues = self._of_graphs.setdefault(graph, {})
        found: list[Batch] = queues.setdefault((name, what), [])
        return found


def _is_for_training(batch: Batch) -> bool:
    """A value that is known only when it runs counts as training."""
    value = batch.training
    if not isinstance(value, bool):
        value = tf.get_static_value(value)
    return value is None or bool(value)
