"""The batches of one replica and name on their way through a step.

    put --> [enqueued] --take--> lookup --hold--> [in flight] --finish--> update

The queues are TensorFlow resources, so the calls pair when they run, in the
order of `put`, as on a TPU: an eager enqueue feeds a dequeue that was traced
long before. Only ids travel.

A batch that was put for inference stays in flight until the next `take`, which
drops it. One that was put for training must be finished before the next `take`:
else its gradients would later be taken for another batch's. Where the calls have
a name, it is dropped too: TensorFlow takes a name that has no apply_gradients for
inference, whatever enqueue was told, and layers on top rely on it.

`take` and `finish` never wait. `put` waits where as many batches as are allowed
were not taken yet, until another thread takes one or the time is over. On a TPU's
host all three wait for each other instead (`waits`): its calls come from programs
that run side by side.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.steps.batch_queue import (
    HOST,
    Batch,
    BatchForm,
    BatchQueue,
    require,
)

__all__ = ["QueueBound", "StepQueue"]

_PAUSE = 0.001  # Seconds between two looks at a full queue.


@dataclasses.dataclass(frozen=True)
class QueueBound:
    """How many batches may wait, and for how many seconds `put` waits then.

    Raises:
      tfembed.errors.ArgumentError: a bound below 1, or a time below 0.
    """

    batches: int = 64
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if type(self.batches) is not int or self.batches < 1:
            raise errors.ArgumentError(
                "`max_enqueued` must be an int and at least 1; got "
                f"{self.batches!r}."
            )
        if not self.seconds >= 0:
            raise errors.ArgumentError(
                "`enqueue_timeout` must be seconds, 0 or more; got "
                f"{self.seconds!r}."
            )


class StepQueue:
    """Two queues of batches of one form.

    Made outside of any function. Methods work eagerly and in functions; a call
    that comes too early raises tf.errors.InvalidArgumentError, or waits.

    Args:
      form: of the batches.
      label: what errors call them.
      bound: how many may wait for `take`.
      waits: whether a call that comes too early waits, without a time.
      drops_unfinished: whether `take` drops a batch that was not finished.

    Attributes:
      label: as it was given.
    """

    def __init__(
        self,
        form: BatchForm,
        *,
        label: str,
        bound: QueueBound = QueueBound(),
        waits: bool = False,
        drops_unfinished: bool = False,
    ) -> None:
        self.label = label
        self._drops_unfinished = drops_unfinished
        self._bound = bound
        self._waits = waits
        capacity = bound.batches if waits else -1
        self._enqueued = BatchQueue(form, capacity=capacity)
        self._in_flight = BatchQueue(form)

    @classmethod
    def chosen(cls, queues: Sequence[StepQueue], place: tf.Tensor) -> StepQueue:
        """One of several alike, by a number that is known when it runs."""
        made = cls.__new__(cls)
        made.label, made._bound = queues[0].label, queues[0]._bound
        made._waits = queues[0]._waits
        made._drops_unfinished = queues[0]._drops_unfinished
        made._enqueued = BatchQueue.chosen(
            [one._enqueued for one in queues], place
        )
        made._in_flight = BatchQueue.chosen(
            [one._in_flight for one in queues], place
        )
        return made

    def put(self, batch: Batch) -> Any:
        """Enqueues a batch; returns the operation, in graphs.

        Raises:
          tf.errors.InvalidArgumentError: there is no room, and none came.
        """
        with tf.control_dependencies(self._await_room()):
            return self._enqueued.push(batch)

    def take(self) -> Batch:
        """Removes the oldest enqueued batch, for `hold` once it is looked up.

        Raises:
          tf.errors.InvalidArgumentError: nothing is enqueued, or the batch
            taken last was for training and was not finished.
        """
        checks = self.idle_checks()
        checks += self._require_batch(
            self._enqueued,
            f"dequeue finds nothing enqueued {self.label}. Call enqueue "
            "first, once per dequeue and replica.",
        )
        with tf.control_dependencies(checks):
            return self._enqueued.pop()[0]

    def hold(self, batch: Batch) -> Any:
        """Keeps a batch that was taken for `finish`; returns the operation."""
        return self._in_flight.push(batch)

    def finish(self) -> Batch:
        """Removes the batch that was looked up.

        Raises:
          tf.errors.InvalidArgumentError: none was, or not for training.
        """
        check = self._require_batch(
            self._in_flight,
            f"apply_gradients finds no dequeued batch {self.label}. Call "
            "enqueue and dequeue first, once per apply_gradients and replica.",
        )
        with tf.control_dependencies(check):
            batch, _ = self._in_flight.pop()
        with tf.device(HOST):
            check = require(
                batch.training,
                f"apply_gradients finds a batch {self.label} that was "
                "enqueued with training=False. Enqueue it with training=True.",
            )
        with tf.control_dependencies(check):
            return Batch(tf.identity(batch.training), batch.features)

    @property
    def resources(self) -> list[Any]:
        """What exported functions hold the batches by."""
        return [self._enqueued.resource, self._in_flight.resource]

    def size(self) -> tf.Tensor:
        """The batches that are enqueued, int32 []."""
        return self._enqueued.size()

    def idle_checks(self) -> list[Any]:
        """Drops a batch in flight, or raises and keeps one that needs `finish`.

        Returns:
          What must have run before the next batch is in flight.
        """

        def drop() -> tf.Tensor:
            batch, _ = self._in_flight.pop()
            if self._drops_unfinished:
                return tf.constant(0)

            def keep() -> tf.Tensor:
                with tf.control_dependencies([self._in_flight.push(batch)]):
                    return tf.constant(True)

            needs_finish = tf.cond(
                batch.training, keep, lambda: tf.constant(False)
            )
            require(
                tf.logical_not(needs_finish),
                f"dequeue finds that the batch dequeued before {self.label} "
                "is still waiting for its apply_gradients. For evaluation, "
                "enqueue with training=False; for several lookups in one step, "
                "give each its own `name`; after a step that failed, call "
                "reset_steps().",
            )
            return tf.constant(0)

        with tf.device(HOST):
            return [
                tf.cond(
                    self._in_flight.size() > 0, drop, lambda: tf.constant(0)
                )
            ]

    def is_idle(self) -> bool:
        """Whether no call needs what is in it; eager only."""
        if int(self._enqueued.size()):
            return False
        if not int(self._in_flight.size()):
            return True
        batch, _ = self._in_flight.pop()
        self._in_flight.push(batch)
        return not bool(batch.training)

    def clear(self) -> None:
        """Forgets all batches; eager only."""
        self._enqueued.clear()
        self._in_flight.clear()

    def _await_room(self) -> list[Any]:
        if self._waits:
            return []
        with tf.device(HOST):
            if tf.executing_eagerly():
                return require(self._has_room(), self._no_room())
            has_room = tf.cond(
                self._enqueued.size() < self._bound.batches,
                lambda: tf.constant(True),
                lambda: tf.ensure_shape(
                    tf.py_function(self._has_room, [], tf.bool), []
                ),
            )
            return require(has_room, self._no_room())

    def _has_room(self) -> tf.Tensor:
        """Whether there is room for a batch, once it has waited; eager."""
        until = time.monotonic() + self._bound.seconds
        while int(self._enqueued.size()) >= self._bound.batches:
            if time.monotonic() >= until:
                return tf.constant(False)
            time.sleep(_PAUSE)
        return tf.constant(True)

    def _no_room(self) -> str:
        return (
            f"enqueue finds that {self._bound.batches} batches enqueued "
            f"{self.label} still wait for their dequeue, after "
            f"{self._bound.seconds} seconds. Call dequeue once per enqueue; "
            "for programs that run further ahead, make TPUEmbedding with a "
            "larger `max_enqueued` or `enqueue_timeout`; after a step that "
            "failed, call reset_steps()."
        )

    def _require_batch(self, queue: BatchQueue, otherwise: str) -> list[Any]:
        if self._waits:
            return []
        with tf.device(HOST):
            return require(queue.size() > 0, otherwise)
