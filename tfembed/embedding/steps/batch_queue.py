"""A queue of batches: their ids, and tensors that belong to them.

It is a TensorFlow resource in host memory, so that one function, or eager code,
can push and another can pop. The tensors are shared, not copied. XLA cannot
compile TensorFlow's queues; in its functions a `TraceQueue` passes the tensors
on at trace time.
"""

from __future__ import annotations

import copy
import dataclasses
import uuid
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.features.inputs import InputSpec
from tfembed.embedding.steps.step_forms import StepName
from tfembed.ops import FeatureIds

__all__ = [
    "HOST",
    "Batch",
    "BatchQueue",
    "TraceQueue",
    "TraceQueues",
    "batch_dtypes",
]

HOST = "/CPU:0"

# Kind of a feature -> its tensors in the queue: fields of FeatureIds, with
# their dtypes (None: that of the ids) and shapes. The batch size is equal in
# all steps.
_FIELDS: dict[str, dict[str, tuple[tf.DType | None, list[int | None]]]] = {
    "dense": {"ids": (None, [None])},
    "ragged": {
        "ids": (None, [None]),
        "rows": (tf.int64, [None]),
        "weights": (tf.float32, [None]),
    },
    "sparse": {
        "ids": (None, [None]),
        "rows": (tf.int64, [None, 2]),
        "weights": (tf.float32, [None]),
        "dense_shape": (tf.int64, [2]),
    },
}


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """An enqueued batch, of one replica or of all replicas together.

    Attributes:
      training: whether apply_gradients follows: a Python bool, or bool [].
      features: the tensors of each feature.
      specs: the spec of each feature, equal for all batches of a queue.
    """

    training: Any
    features: list[FeatureIds]
    specs: Sequence[InputSpec]

    @property
    def tensors(self) -> list[tf.Tensor]:
        """The tensors that a queue stores of the batch."""
        found = [tf.convert_to_tensor(self.training, tf.bool)]
        for one in self.features:
            found += [getattr(one, field) for field in _FIELDS[one.kind]]
        return found

    @classmethod
    def of_tensors(
        cls, tensors: Sequence[tf.Tensor], specs: Sequence[InputSpec]
    ) -> Batch:
        """Makes the batch that has these `tensors`."""
        rest = iter(tensors)
        training = next(rest)
        training.set_shape([])
        features = []
        for spec in specs:
            fields = {
                "rows": tf.zeros([0], tf.int64),
                "weights": tf.zeros([0], tf.float32),
            }
            for field, (_, shape) in _FIELDS[spec.kind].items():
                fields[field] = next(rest)
                fields[field].set_shape(shape)
            size = tf.constant(spec.batch_size, tf.int64)
            features.append(FeatureIds(spec.kind, batch_size=size, **fields))
        return cls(training, features, specs)


def batch_dtypes(specs: Sequence[InputSpec]) -> list[tf.DType]:
    """Returns the dtypes of `Batch.tensors` for these specs."""
    return [
        tf.bool,
        *[
            dtype or spec.id_dtype
            for spec in specs
            for dtype, _ in _FIELDS[spec.kind].values()
        ],
    ]


class BatchQueue:
    """A queue of batches of equal specs, with float32 tensors of given shapes.

    Make it outside of any function. All methods but `clear` work eagerly and in
    functions.

    Args:
      specs: the specs of the features of all its batches.
      shapes: the shapes of the additional tensors of each batch.

    Attributes:
      resource: the resource that exported functions capture.
    """

    def __init__(
        self,
        specs: Sequence[InputSpec],
        shapes: Sequence[tf.TensorShape],
    ) -> None:
        self._specs = tuple(specs)
        self._shapes = tuple(shapes)
        dtypes = batch_dtypes(specs) + [tf.float32] * len(self._shapes)
        self._queue: Any
        with tf.init_scope(), tf.device(HOST):
            self._queue = tf.queue.FIFOQueue(-1, dtypes)
        self.resource: Any = _QueueResource(self._queue)

    @classmethod
    def chosen(
        cls, queues: Sequence[BatchQueue], index: tf.Tensor
    ) -> BatchQueue:
        """Selects one of several queues by an index tensor."""
        chosen = copy.copy(queues[0])
        with tf.device(HOST):
            handles = tf.stack([queue._queue.queue_ref for queue in queues])
            chosen._queue = _QueueOfHandle(
                tf.gather(handles, index), queues[0]._queue.dtypes
            )
        return chosen

    def size(self) -> tf.Tensor:
        """Returns the number of batches, int32 []."""
        with tf.device(HOST):
            return self._queue.size()

    def push(self, batch: Batch, tensors: Sequence[tf.Tensor] = ()) -> Any:
        """Appends a batch; returns the operation in graphs."""
        with tf.device(HOST):
            return self._queue.enqueue([*batch.tensors, *tensors])

    def pop(self) -> tuple[Batch, list[tf.Tensor]]:
        """Removes the oldest batch; blocks while the queue is empty."""
        with tf.device(HOST):
            tensors = list(self._queue.dequeue())
        n = len(tensors) - len(self._shapes)
        for tensor, shape in zip(tensors[n:], self._shapes, strict=True):
            tensor.set_shape(shape)
        return Batch.of_tensors(tensors[:n], self._specs), tensors[n:]

    def clear(self) -> None:
        """Drops all batches; eager only."""
        while int(self._queue.size()):
            self._queue.dequeue()


class _QueueResource(tf.saved_model.experimental.TrackableResource):
    """The queue as a resource; each exported model gets an empty queue."""

    def __init__(self, queue: Any) -> None:
        super().__init__(device=HOST)
        self._resource_handle = queue.queue_ref
        self._dtypes = queue.dtypes

    def _create_resource(self) -> tf.Tensor:
        return tf.raw_ops.FIFOQueueV2(
            component_types=self._dtypes,
            capacity=-1,
            shared_name=f"tfembed_{uuid.uuid4().hex}",
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _QueueOfHandle:
    """A queue that is given by its handle, with the methods of BatchQueue."""

    handle: tf.Tensor
    dtypes: Sequence[tf.DType]

    def size(self) -> tf.Tensor:
        return tf.raw_ops.QueueSizeV2(handle=self.handle)

    def enqueue(self, components: list[tf.Tensor]) -> Any:
        return tf.raw_ops.QueueEnqueueV2(
            handle=self.handle, components=components
        )

    def dequeue(self) -> list[tf.Tensor]:
        return list(
            tf.raw_ops.QueueDequeueV2(
                handle=self.handle, component_types=self.dtypes
            )
        )


class TraceQueue:
    """The batches of one name in a function that is being traced.

    Args:
      name: the name of the steps.
    """

    def __init__(self, name: StepName) -> None:
        self._name = name
        self._enqueued: list[Batch] = []
        self._in_flight: Batch | None = None

    def put(self, batch: Batch) -> None:
        """Enqueues a batch, with the features' static sizes as constants."""
        features = [
            dataclasses.replace(
                ids, batch_size=tf.constant(spec.batch_size, tf.int64)
            )
            for ids, spec in zip(batch.features, batch.specs, strict=True)
        ]
        self._enqueued.append(dataclasses.replace(batch, features=features))

    def take(self) -> Batch:
        """Removes the oldest batch, which is in flight then, and returns it.

        Raises:
          tfembed.errors.StateError: no batch was enqueued in this function; or
            the queue has no name, and the batch before waits for its gradients.
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
        """Removes and returns the batch in flight.

        Raises:
          tfembed.errors.StateError: no batch is in flight, or the batch is not
            for training.
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
        """Returns the queue of a name in the function that is being traced."""
        graph = tf.compat.v1.get_default_graph()
        queues: dict[StepName, TraceQueue]
        queues = self._of_graphs.setdefault(graph, {})
        return queues.setdefault(name, TraceQueue(name))


def _is_for_training(batch: Batch) -> bool:
    """Says whether a batch is for training; True if only known at run time."""
    value = batch.training
    if not isinstance(value, bool):
        value = tf.get_static_value(value)
    return value is None or bool(value)
