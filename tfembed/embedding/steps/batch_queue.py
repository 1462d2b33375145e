"""A queue of batches: their ids, and tensors that travel beside them.

A TensorFlow resource in host memory, so that what is put by one function, or
eagerly, is taken by another. The tensors are shared, not copied.
"""

from __future__ import annotations

import copy
import dataclasses
import uuid
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed.embedding.features.inputs import InputSpec
from tfembed.ops import FeatureIds

__all__ = ["HOST", "Batch", "BatchQueue", "batch_dtypes"]

HOST = "/CPU:0"

# The tensors of a feature that travel, by its kind: fields of FeatureIds, with their
# dtypes (None: the ids' own) and shapes. A batch's size is the same in every step.
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
    """An enqueued batch, of one replica or of several as one.

    Attributes:
      training: whether apply_gradients follows: bool [], or of Python.
      features: the tensors of each feature.
      specs: how each is read, which all batches of a queue share.
    """

    training: Any
    features: list[FeatureIds]
    specs: Sequence[InputSpec]

    @property
    def tensors(self) -> list[tf.Tensor]:
        """The tensors of the batch that travel."""
        found = [tf.convert_to_tensor(self.training, tf.bool)]
        for one in self.features:
            found += [getattr(one, field) for field in _FIELDS[one.kind]]
        return found

    @classmethod
    def of_tensors(
        cls, tensors: Sequence[tf.Tensor], specs: Sequence[InputSpec]
    ) -> Batch:
        """Puts together the batch that has these `tensors`."""
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
    """The dtypes of `Batch.tensors` of batches that are read so."""
    return [
        tf.bool,
        *[
            dtype or spec.id_dtype
            for spec in specs
            for dtype, _ in _FIELDS[spec.kind].values()
        ],
    ]


class BatchQueue:
    """Batches that are read alike, each with float32 tensors of the given shapes.

    Made outside of any function. Methods but `clear` work eagerly and in
    functions.

    Args:
      specs: how the features of all its batches are read.
      shapes: of the tensors beside each.

    Attributes:
      resource: what exported functions hold it by.
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
        """Picks one of several queues by an index, known when it runs."""
        chosen = copy.copy(queues[0])
        with tf.device(HOST):
            handles = tf.stack([queue._queue.queue_ref for queue in queues])
            chosen._queue = _QueueOfHandle(
                tf.gather(handles, index), queues[0]._queue.dtypes
            )
        return chosen

    def size(self) -> tf.Tensor:
        """The batches in it, int32 []."""
        with tf.device(HOST):
            return self._queue.size()

    def push(self, batch: Batch, tensors: Sequence[tf.Tensor] = ()) -> Any:
        """Puts a batch behind all others; returns the operation, in graphs."""
        with tf.device(HOST):
            return self._queue.enqueue([*batch.tensors, *tensors])

    def pop(self) -> tuple[Batch, list[tf.Tensor]]:
        """Removes the oldest batch. Waits forever where there is none."""
        with tf.device(HOST):
            tensors = list(self._queue.dequeue())
        n = len(tensors) - len(self._shapes)
        for tensor, shape in zip(tensors[n:], self._shapes, strict=True):
            tensor.set_shape(shape)
        return Batch.of_tensors(tensors[:n], self._specs), tensors[n:]

    def clear(self) -> None:
        """Forgets all batches; eager only."""
        while int(self._queue.size()):
            self._queue.dequeue()


class _QueueResource(tf.saved_model.experimental.TrackableResource):
    """A queue for models that are exported, which get an empty one each."""

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
    """A queue known by its handle, with the methods that BatchQueue calls."""

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
