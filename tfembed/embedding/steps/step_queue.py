"""The batches of one replica and name on their way through a step.

    put --> [enqueued] --take--> lookup --hold--> [in flight] --finish--> update

The queue is a TensorFlow resource (`cc/kernels/step_queue.h`), so the calls
pair when they run, in the order of `put`, as on a TPU: an eager enqueue feeds a
dequeue that was traced long before. It stores only ids. `look_up` does take,
lookup and hold in one op, `update` does finish and update; then the ids are in
no graph.

A batch that was put for inference stays in flight until the next `take`, which
drops it. A batch that was put for training must be finished before the next
`take`: else its gradients might be applied to another batch. If the calls have
a name, such a batch is dropped too: TensorFlow treats a name without
apply_gradients as inference, regardless of `training` in enqueue, and layers
rely on it.

`take` and `finish` never block. `put` blocks while the queue is full, until
another thread takes a batch or the timeout is over. On a TPU's host all three
block instead (`waits`), since the calls come from programs that run
concurrently.
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
    """The most batches that may wait, and the seconds that `put` blocks then.

    Raises:
      tfembed.errors.ArgumentError: a bound below 1, or negative seconds.
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
    """A queue of batches of equal specs.

    Make it outside of any function. Methods work eagerly and in functions; an
    early call raises tf.errors.InvalidArgumentError, or blocks.

    Args:
      specs: the specs of the features of all its batches.
      label: the queue's name in errors.
      bound: the bound of the batches that wait for `take`.
      waits: whether early calls block, without a timeout.
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
        """Selects one of several queues by an index tensor."""
        chosen = copy.copy(queues[0])
        with tf.device(HOST):
            handles = tf.stack([queue._handle for queue in queues])
            chosen._handle = tf.gather(handles, index)
        return chosen

    def put(self, batch: Batch) -> Any:
        """Enqueues a batch; returns the operation in graphs.

        Raises:
          tf.errors.InvalidArgumentError: the queue is full until the timeout.
        """
        with tf.device(HOST):
            return ops.step.put(self._handle, batch.tensors)

    def take(self) -> Batch:
        """Removes the oldest enqueued batch; `hold` it after its lookup.

        Raises:
          tf.errors.InvalidArgumentError: the queue is empty, or the batch taken
            last was for training and was not finished.
        """
        with tf.device(HOST):
            tensors = ops.step.take(self._handle, self._dtypes)
        return Batch.of_tensors(tensors, self._specs)

    def hold(self, batch: Batch) -> Any:
        """Keeps a taken batch for `finish`; returns the operation."""
        with tf.device(HOST):
            return ops.step.hold(self._handle, batch.tensors)

    def finish(self) -> Batch:
        """Removes and returns the batch in flight.

        Raises:
          tf.errors.InvalidArgumentError: no batch is in flight, or it is not
            for training.
        """
        with tf.device(HOST):
            tensors = ops.step.finish(self._handle, self._dtypes)
        return Batch.of_tensors(tensors, self._specs)

    def look_up(
        self, tables: Sequence[Any], attrs: Mapping[str, Any]
    ) -> list[tf.Tensor]:
        """Takes the oldest batch, looks it up and holds it.

        Args:
          tables: the tables' handles.
          attrs: the op attributes from `ops.step.step_attrs`.

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
        """Finishes the batches of all replicas and updates their rows.

        Args:
          queues: the queues of the replicas, of equal specs.
          **arguments: the other arguments of `ops.step.update`.

        Returns:
          int64 [tables]: the count of rows with a non-finite summed gradient.

        Raises:
          tf.errors.InvalidArgumentError: as `finish`, and a gradient that is
            refused.
        """
        with tf.device(HOST):
            return ops.step.update([one._handle for one in queues], **arguments)

    @property
    def resources(self) -> list[Any]:
        """Returns the queue's resources, which exported functions capture."""
        return [self._resource]

    def size(self) -> tf.Tensor:
        """Returns the number of enqueued batches, int32 []."""
        with tf.device(HOST):
            return ops.step.sizes(self._handle)[0]

    def drop_idle(self) -> Any:
        """Drops the batch in flight; raises if that needs `finish`.

        Returns:
          The operation in graphs.
        """
        with tf.device(HOST):
            return ops.step.drop_idle(self._handle)

    def is_idle(self) -> bool:
        """Says whether no batch in the queue is needed; eager only."""
        with tf.device(HOST):
            return not ops.step.sizes(self._handle).numpy().any()

    def clear(self) -> None:
        """Drops all batches; eager only."""
        with tf.device(HOST):
            ops.step.clear(self._handle)


class _QueueResource(tf.saved_model.experimental.TrackableResource):
    """The queue as a resource; each exported model gets an empty queue."""

    def __init__(self, label: str, **rules: Any) -> None:
        super().__init__(device=HOST)
        self._label = label
        self._rules = rules

    def _create_resource(self) -> tf.Tensor:
        return ops.step.create(self._label, **self._rules)
