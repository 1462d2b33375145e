"""Batches as TensorFlow's contenders take them, alone and in a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.lookup.workload import Batch

_ALIGNED = 16  # Items: slices that start at a multiple of them share memory.


class Sliced:
    """Arrays behind each other in one tensor; a slice of it is no copy."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        parts, starts, at = [], [], 0
        for array in arrays:
            starts.append(at)
            padded = -len(array) % _ALIGNED
            rest = np.zeros((padded, *array.shape[1:]), array.dtype)
            parts += [array, rest]
            at += len(array) + padded
        self._all = tf.constant(np.concatenate(parts))
        self._starts = tf.constant(starts)
        self._sizes = tf.constant([len(array) for array in arrays])

    def __getitem__(self, i: Any) -> tf.Tensor:
        start = self._starts[i]
        return self._all[start : start + self._sizes[i]]


def kind(form: str) -> str:
    """How a form of calls gives its features: sparse, ragged, or nothing."""
    return form.partition(" ")[2]


def ragged(batch: Batch) -> list[tf.RaggedTensor]:
    """One RaggedTensor a feature."""
    return [
        tf.RaggedTensor.from_row_splits(
            tf.constant(ids), tf.constant(splits), validate=False
        )
        for ids, splits in map(batch.feature, range(batch.features))
    ]


def indices(splits: np.ndarray) -> np.ndarray:
    """The indices [n, 2] of a SparseTensor, of row splits."""
    rows = np.repeat(np.arange(len(splits) - 1), np.diff(splits))
    return np.stack([rows, np.arange(len(rows)) - splits[rows]], 1)


def sparse(batch: Batch) -> list[tf.SparseTensor]:
    """One SparseTensor a feature."""
    made = []
    for ids, splits in map(batch.feature, range(batch.features)):
        shape = [len(splits) - 1, int(np.diff(splits).max())]
        made.append(tf.SparseTensor(indices(splits), ids, shape))
    return made


def sparse_at(batches: Sequence[Batch]) -> Callable[[Any], list[Any]]:
    """Batch i as SparseTensors, for i in a loop."""
    ids, rows = [], []
    for f in range(batches[0].features):
        features = [batch.feature(f) for batch in batches]
        ids.append(Sliced([one for one, _ in features]))
        rows.append(Sliced([indices(splits) for _, splits in features]))
    longest = max(int(np.diff(batch.splits).max()) for batch in batches)
    shape = tf.constant([batches[0].size, longest], tf.int64)
    return lambda i: [
        tf.SparseTensor(rows_f[i], ids_f[i], shape)
        for ids_f, rows_f in zip(ids, rows)
    ]


def checksum(activations: Sequence[tf.Tensor]) -> tf.Tensor:
    """A number of all outputs, inside of a function."""
    return tf.add_n([one[0, 0] for one in activations])


def consume(activations: Sequence[tf.Tensor]) -> None:
    """Waits for, and reads, every output, without an op of its own."""
    sum(memoryview(one)[0, 0] for one in activations)


def loop(
    step: Callable[[Any], Sequence[tf.Tensor]],
    batch_at: Callable[[Any], Any],
    count: int,
) -> Callable[[], None]:
    """All batches in one call of a function."""

    @tf.function(autograph=False)
    def steps() -> tf.Tensor:
        def body(i: tf.Tensor, total: tf.Tensor) -> tuple[Any, Any]:
            return i + 1, total + checksum(step(batch_at(i)))

        first = (tf.constant(0), tf.constant(0.0))
        return tf.while_loop(lambda i, _: i < count, body, first)[1]

    return lambda: float(steps())


def calls(
    step: Callable[[Any], Sequence[tf.Tensor]], sent: Sequence[Any]
) -> Callable[[], None]:
    """One call a batch."""

    def run() -> None:
        for batch in sent:
            consume(step(batch))

    return run


def traced(
    step: Callable[[Any], Sequence[tf.Tensor]],
) -> Callable[[Any], Sequence[tf.Tensor]]:
    """A step as one function for all batches."""
    return tf.function(step, autograph=False, reduce_retracing=True)
