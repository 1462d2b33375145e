"""The batches of one replica and name on their way through a step.

    put --> [enqueued] --take--> lookup --hold--> [in flight] --finish--> update

The queue is a TensorFlow resource (`cc/kernels/step_queue.h`), so the calls pair when
they run, in the order of `put`, as on a TPU: an eager enqueue feeds a dequeue that was
traced long before. Only ids travel. `look_up` is take, lookup and hold in one op,
`update` finish and update: then the ids go through no graph.

A batch that was put for inference stays in flight until the next `take`, which
drops it. A batch that was put for training must be finished before the next
`take`: else its gradients would later be taken for another batch's. If the
calls have a name, such a batch is dropped too: TensorFlow takes a name that has
no apply_gradients for inference, whatever enqueue was told, and layers on top
rely on it.

`take` and `finish` never wait. `put` waits where as many batches as are allowed
were not taken yet, until another thread takes one or the time is over. On a TPU's
host all three wait for each other instead (`waits`): its calls come from programs
that run side by side.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import checks, errors, ops
from tfembed.embedding.features.inputs import InputSpec
from tfembed.embedding.steps.batch_queue import (
    HOST,
    Batch,
    batch_dtypes,
)

__all__ = ["QueueBound", "StepQueue"]


@dataclasses.dataclass(frozen=True)
class QueueBound:
    """How many batches may wait, and for how many seconds `put` waits then.

    Raises:
      tfembed.errors.ArgumentError: a bound below 1, or a time below 0.
    """

    batches: int = 64
    seconds: float = 60.0

    def __post_init__(self) -> None:
        batches = checks.integer(self.batches, "max_enqueued", least=1)
        object.__setattr__(self, "batches", batches)
        if not self.seconds >= 0:
            raise errors.ArgumentError(
                "`enqueue_timeout` must be seconds, 0 or more; got "
                f"{self.seconds!r}."
            )


class StepQueue:
    """Batches that are read alike.

    Made outside of any function. Methods work eagerly and in functions; a call
    that comes too early raises tf.errors.InvalidArgumentError, or waits.

    Args:
      specs: how the features of all its batches are read.
      label: their names in errors.
      bound: how many may wait for `take`.
      waits: whether a call that comes too early waits, without a time.
      drops_unfinished: whether `take` drops a batch that was not finished.
    """

    def __init__(
        self,
        specs: Sequence[InputSpec],
        *,
        label: str,
        bound: QueueBound = QueueBound(),
        waits: bool = False,
        drops_unfinished: bool = False,
    ) -> None:
        self._specs = tuple(specs)
        with tf.init_scope():
            self._resource: Any = _QueueResource(
                label,
                most_batches=bound.batches,
                seconds=bound.seconds,
                waits=waits,
                drops_unfinished=drops_unfinished,
            )
            self._handle = self._resource.resource_handle

    @functools.cached_property
    def _dtypes(self) -> list[tf.DType]:
        return batch_dtypes(self._specs)

    @classmethod
    def chosen(cls, queues: Sequence[StepQueue], index: tf.Tensor) -> StepQueue:
        """Picks one of several queues by an index, known when it runs."""
        chosen = copy.copy(queues[0])
        with tf.device(HOST):
            handles = tf.stack([queue._handle for queue in queues])
            chosen._handle = tf.gather(handles, index)
        return chosen

    def put(self, batch: Batch) -> Any:
        """Enqueues a batch; returns the operation, in graphs.

        Raises:
          tf.errors.InvalidArgumentError: there is no room, and none came.
        """
        with tf.device(HOST):
            return ops.step.put(self._handle, batch.tensors)

    def take(self) -> Batch:
        """Removes the oldest enqueued batch, for `hold` once it is looked up.

        Raises:
          tf.errors.InvalidArgumentError: nothing is enqueued, or the batch
            taken last was for training and was not finished.
        """
        with tf.device(HOST):
            tensors = ops.step.take(self._handle, self._dtypes)
        return Batch.of_tensors(tensors, self._specs)

    def hold(self, batch: Batch) -> Any:
        """Keeps a batch that was taken for `finish`; returns the operation."""
        with tf.device(HOST):
            return ops.step.hold(self._handle, batch.tensors)

    def finish(self) -> Batch:
        """Removes the batch that was looked up.

        Raises:
          tf.errors.InvalidArgumentError: none was, or not for training.
        """
        with tf.device(HOST):
            tensors = ops.step.finish(self._handle, self._dtypes)
        return Batch.of_tensors(tensors, self._specs)

    def look_up(
        self, tables: Sequence[Any], attrs: Mapping[str, Any]
    ) -> list[tf.Tensor]:
        """Takes the oldest batch and keeps it once it is looked up.

        Args:
          tables: their handles.
          attrs: as `ops.step.step_attrs` makes them.

        Returns:
          Per feature its activations, without a gradient.

        Raises:
          tf.errors.InvalidArgumentError: as `take`, and an id that cannot be in
            its table.
        """
        with tf.device(HOST):
            return ops.step.lookup(self._handle, tables, attrs)

    @staticmethod
    def update(queues: Sequence[StepQueue], **arguments: Any) -> tf.Tensor:
        """Finishes the batches of all replicas and trains their rows.

        Args:
          queues: the queues of the replicas, alike.
          **arguments: what else `ops.step.update` takes.

        Returns:
          int64 [tables]: the rows whose sums had a NaN or an infinity.

        Raises:
          tf.errors.InvalidArgumentError: as `finish`, and a gradient that is
            refused.
        """
        with tf.device(HOST):
            return ops.step.update([one._handle for one in queues], **arguments)

    @property
    def resources(self) -> list[Any]:
        """The resources by which exported functions hold the batches."""
        return [self._resource]

    def size(self) -> tf.Tensor:
        """The batches that are enqueued, int32 []."""
        with tf.device(HOST):
            return ops.step.sizes(self._handle)[0]

    def drop_idle(self) -> Any:
        """Drops a batch in flight, or raises and keeps one that needs `finish`.

        Returns:
          The operation, in graphs.
        """
        with tf.device(HOST):
            return ops.step.drop_idle(self._handle)

    def is_idle(self) -> bool:
        """Whether no call needs what is in it; eager only."""
        with tf.device(HOST):
            return not ops.step.sizes(self._handle).numpy().any()

    def clear(self) -> None:
        """Forgets all batches; eager only."""
        with tf.device(HOST):
            ops.step.clear(self._handle)


class _QueueResource(tf.saved_model.experimental.TrackableResource):
    """A queue for models that are exported, which get an empty one each."""

    def __init__(self, label: str, **rules: Any) -> None:
        super().__init__(device=HOST)
        self._label = label
        self._rules = rules

    def _create_resource(self) -> tf.Tensor:
        return ops.step.create(self._label, **self._rules)
