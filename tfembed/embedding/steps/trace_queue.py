"""Batches that are enqueued and used inside of one function that XLA compiles.

No queue of TensorFlow's can be compiled, and none is needed there: tracing itself
hands the tensors on.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.steps.batch_queue import Batch
from tfembed.embedding.steps.step_forms import StepName

__all__ = ["TraceQueue", "TraceQueues"]


class TraceQueue:
    """The batches of one name in a function that is being traced.

    Args:
      name: of the steps.
    """

    def __init__(self, name: StepName) -> None:
        self._name = name
        self._enqueued: list[Batch] = []
        self._in_flight: Batch | None = None

    def put(self, batch: Batch) -> None:
        """Enqueues a batch, whose features get their sizes as constants."""
        features = [
            dataclasses.replace(
                ids, batch_size=tf.constant(spec.batch_size, tf.int64)
            )
            for ids, spec in zip(batch.features, batch.specs, strict=True)
        ]
        self._enqueued.append(dataclasses.replace(batch, features=features))

    def take(self) -> Batch:
        """The oldest batch, which is in flight from now on.

        Raises:
          tfembed.errors.StateError: none was enqueued in this function, or the
            one before waits for its gradients.
        """
        last = self._in_flight
        # A batch with a name is dropped, as by a StepQueue.
        if self._name is None and last is not None and _is_for_training(last):
            raise errors.StateError(
                "dequeue finds that the batch dequeued before is still waiting "
                "for its apply_gradients. For evaluation, enqueue with "
                "training=False; for several lookups in one step, give each its "
                "own `name`."
            )
        if not self._enqueued:
            raise errors.StateError(
                "dequeue in a function that XLA compiles finds nothing enqueued "
                "in it: call enqueue, dequeue and apply_gradients in the same "
                "function, or dequeue outside of jit_compile=True."
            )
        self._in_flight = self._enqueued.pop(0)
        return self._in_flight

    def finish(self) -> Batch:
        """Removes the batch in flight.

        Raises:
          tfembed.errors.StateError: there is none, or it is not for training.
        """
        batch = self._in_flight
        if batch is None:
            raise errors.StateError(
                "apply_gradients in a function that XLA compiles finds no "
                "dequeued batch in it: call enqueue and dequeue in the same "
                "function."
            )
        if not _is_for_training(batch):
            raise errors.StateError(
                "apply_gradients finds a batch that was enqueued with "
                "training=False. Enqueue it with training=True."
            )
        self._in_flight = None
        return batch


class TraceQueues:
    """The queues of each function that is being traced, by name."""

    def __init__(self) -> None:
        self._of_graphs: Any = weakref.WeakKeyDictionary()

    def queue(self, name: StepName) -> TraceQueue:
        """The queue of a name in the function that is traced now."""
        graph = tf.compat.v1.get_default_graph()
        queues: dict[StepName, TraceQueue]
        queues = self._of_graphs.setdefault(graph, {})
        return queues.setdefault(name, TraceQueue(name))


def _is_for_training(batch: Batch) -> bool:
    """A value that is known only when it runs counts as training."""
    value = batch.training
    if not isinstance(value, bool):
        value = tf.get_static_value(value)
    return value is None or bool(value)
