"""The batches of one replica and name on their way through a step.

    put --> [enqueued] --take--> lookup --hold--> [in flight] --finish--> update

The queues are TensorFlow resources, so the calls pair when they run, in the
order of `put`, as on a TPU: an eager enqueue feeds a dequeue that was traced
long before. Only ids travel: the tensors are shared, not copied.

A batch that was put for inference stays in flight until the next `take`, which
drops it. One that was put for training must be finished before the next `take`:
else its gradients would later be taken for another batch's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed.ops import FeatureIds

__all__ = ["HOST", "Batch", "StepQueue"]

HOST = "/CPU:0"

# What travels of a feature, by its kind: fields of FeatureIds, with their dtypes
# (None: the ids' own) and shapes. A batch's size is the same in every step.
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
    },
}


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """One enqueued batch: bool [], and the features' tensors."""

    training: tf.Tensor
    features: list[FeatureIds]


class StepQueue:
    """Two queues of batches, whose features are the same in each of them.

    Made outside of any function. Methods work eagerly and in functions; a call
    that comes too early raises tf.errors.InvalidArgumentError, it never waits.

    Args:
      kinds: per feature, "dense", "sparse" or "ragged".
      batch_sizes: per feature, its samples.
      id_dtypes: per feature, the dtype of its ids; None: all int64.
      label: what errors call the batches.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        batch_sizes: Sequence[int],
        *,
        id_dtypes: Sequence[tf.DType] | None = None,
        label: str,
    ) -> None:
        self._kinds = tuple(kinds)
        self._batch_sizes = tuple(batch_sizes)
        self._label = label
        id_dtypes = id_dtypes or [tf.int64] * len(self._kinds)
        dtypes = [tf.bool] + [
            dtype or id_dtype
            for kind, id_dtype in zip(self._kinds, id_dtypes, strict=True)
            for dtype, _ in _FIELDS[kind].values()
        ]
        with tf.init_scope(), tf.device(HOST):
            # A negative capacity has no bound.
            self._enqueued = tf.queue.FIFOQueue(-1, dtypes)
            self._in_flight = tf.queue.FIFOQueue(-1, dtypes)

    def put(self, batch: Batch) -> None:
        """Enqueues a batch."""
        self._push(self._enqueued, batch)

    def take(self) -> Batch:
        """Removes the oldest enqueued batch, for `hold` once it is looked up.

        Raises:
          tf.errors.InvalidArgumentError: nothing is enqueued, or the batch
            taken last was for training and was not finished.
        """
        checks = self._drop_inference()
        checks += self._require_batch(
            self._enqueued,
            f"dequeue finds nothing enqueued {self._label}. Call enqueue "
            "first, once per dequeue and replica.",
        )
        with tf.control_dependencies(checks):
            return self._pop(self._enqueued)

    def hold(self, batch: Batch) -> None:
        """Keeps a batch that was taken for `finish`."""
        self._push(self._in_flight, batch)

    def finish(self) -> Batch:
        """Removes the batch that was looked up.

        Raises:
          tf.errors.InvalidArgumentError: none was, or not for training.
        """
        check = self._require_batch(
            self._in_flight,
            f"apply_gradients finds no dequeued batch {self._label}. Call "
            "enqueue and dequeue first, once per apply_gradients and replica.",
        )
        with tf.control_dependencies(check):
            batch = self._pop(self._in_flight)
        check = _require(
            batch.training,
            f"apply_gradients finds a batch {self._label} that was enqueued "
            "with training=False. Enqueue it with training=True.",
        )
        with tf.control_dependencies(check):
            return Batch(tf.identity(batch.training), batch.features)

    def clear(self) -> None:
        """Forgets all batches; eager only."""
        for queue in (self._enqueued, self._in_flight):
            while int(queue.size()):
                queue.dequeue()

    def _drop_inference(self) -> list[Any]:
        def drop() -> tf.Tensor:
            batch = self._pop(self._in_flight)
            _require(
                tf.logical_not(batch.training),
                f"dequeue finds that the batch dequeued before {self._label} "
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

    def _push(self, queue: tf.queue.FIFOQueue, batch: Batch) -> None:
        tensors = [tf.convert_to_tensor(batch.training, tf.bool)]
        for one in batch.features:
            tensors += [getattr(one, field) for field in _FIELDS[one.kind]]
        with tf.device(HOST):
            queue.enqueue(tensors)

    def _require_batch(
        self, queue: tf.queue.FIFOQueue, otherwise: str
    ) -> list[Any]:
        with tf.device(HOST):
            return _require(queue.size() > 0, otherwise)

    def _pop(self, queue: tf.queue.FIFOQueue) -> Batch:
        with tf.device(HOST):
            training, *tensors = queue.dequeue()
        training.set_shape([])
        return Batch(training, self._unpack(tensors))

    def _unpack(self, tensors: Sequence[tf.Tensor]) -> list[FeatureIds]:
        rest = iter(tensors)
        features = []
        for kind, size in zip(self._kinds, self._batch_sizes, strict=True):
            parts = {
                "rows": tf.zeros([0], tf.int64),
                "weights": tf.zeros([0], tf.float32),
            }
            for field, (_, shape) in _FIELDS[kind].items():
                parts[field] = next(rest)
                parts[field].set_shape(shape)
            size_tensor = tf.constant(size, tf.int64)
            features.append(FeatureIds(kind, batch_size=size_tensor, **parts))
        return features


def _require(condition: tf.Tensor, message: str) -> list[Any]:
    """Raises InvalidArgumentError(message) unless `condition` holds."""
    operation = tf.raw_ops.Assert(condition=condition, data=[message])
    return [] if operation is None else [operation]
