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

from tfembed import ops
from tfembed.ops import FeatureIds, FeaturePlan

__all__ = ["HOST", "Batch", "BatchForm", "BatchQueue"]

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
    """An enqueued batch: bool [], and the features' tensors."""

    training: tf.Tensor
    features: list[FeatureIds]


@dataclasses.dataclass(frozen=True)
class BatchForm:
    """The form that all batches of a queue share, per feature.

    Attributes:
      kinds: "dense", "sparse" or "ragged".
      batch_sizes: its samples.
      id_dtypes: tf.int64 or tf.string.
    """

    kinds: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    id_dtypes: tuple[tf.DType, ...]

    @classmethod
    def of(cls, formats: Sequence[Any]) -> BatchForm:
        """The form of batches that are read so: one StepFormat per feature."""
        parts = [(one.kind, one.batch_size, one.id_dtype) for one in formats]
        return cls(*zip(*parts, strict=True))

    def times(self, n: int) -> BatchForm:
        """The form of the batches of n replicas as one."""
        return BatchForm(
            self.kinds * n, self.batch_sizes * n, self.id_dtypes * n
        )

    @property
    def dtypes(self) -> list[tf.DType]:
        """The dtypes of `flat`."""
        return [
            tf.bool,
            *[
                dtype or id_dtype
                for kind, id_dtype in zip(
                    self.kinds, self.id_dtypes, strict=True
                )
                for dtype, _ in _FIELDS[kind].values()
            ],
        ]

    def step_attrs(
        self, dims: Sequence[int], plans: Sequence[FeaturePlan]
    ) -> dict[str, Any]:
        """The attributes by which the ops of a step know such batches."""
        return ops.step.step_attrs(
            dims, self.kinds, self.id_dtypes, self.batch_sizes, plans
        )

    def flat(self, batch: Batch) -> list[tf.Tensor]:
        """The tensors of a batch that travel."""
        parts = [tf.convert_to_tensor(batch.training, tf.bool)]
        for one in batch.features:
            parts += [getattr(one, field) for field in _FIELDS[one.kind]]
        return parts

    def batch(self, parts: Sequence[tf.Tensor]) -> Batch:
        """The batch whose `flat` these are."""
        rest = iter(parts)
        training = next(rest)
        training.set_shape([])
        features = []
        for kind, size in zip(self.kinds, self.batch_sizes, strict=True):
            fields = {
                "rows": tf.zeros([0], tf.int64),
                "weights": tf.zeros([0], tf.float32),
            }
            for field, (_, shape) in _FIELDS[kind].items():
                fields[field] = next(rest)
                fields[field].set_shape(shape)
            size_tensor = tf.constant(size, tf.int64)
            features.append(FeatureIds(kind, batch_size=size_tensor, **fields))
        return Batch(training, features)


class BatchQueue:
    """Batches of one form, each with float32 tensors of the given shapes.

    Made outside of any function. Methods but `clear` work eagerly and in
    functions.

    Args:
      form: of the batches.
      shapes: of the tensors beside each.

    Attributes:
      resource: what exported functions hold it by.
    """

    def __init__(
        self,
        form: BatchForm,
        shapes: Sequence[tf.TensorShape],
    ) -> None:
        self._form = form
        self._shapes = tuple(shapes)
        dtypes = form.dtypes + [tf.float32] * len(self._shapes)
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
            return self._queue.enqueue([*self._form.flat(batch), *tensors])

    def pop(self) -> tuple[Batch, list[tf.Tensor]]:
        """Removes the oldest batch. Waits forever where there is none."""
        with tf.device(HOST):
            parts = list(self._queue.dequeue())
        n = len(parts) - len(self._shapes)
        for tensor, shape in zip(parts[n:], self._shapes, strict=True):
            tensor.set_shape(shape)
        return self._form.batch(parts[:n]), parts[n:]

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
