"""From a source to batches for training: numbers and hashed keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf

from criteo import features
from criteo.source import Chunk, Position, Source
from tfembed.data.criteo import NUM_CATEGORIES, NUM_INTEGERS
from tfembed.errors import DataError


class Batch(NamedTuple):
    """One step's examples, n of them.

    Attributes:
      labels: float32 [n].
      dense: float32 [n, 13].
      keys: int64 [n, 26].
      positions: int64 [n, 4], where the source goes on after each example.
    """

    labels: tf.Tensor
    dense: tf.Tensor
    keys: tf.Tensor
    positions: tf.Tensor


class Pipeline:
    """Reads, parses and hashes ahead of the training, in other threads.

    Attributes:
      failure: what went wrong with the data. tf.data turns it into an error of
        its own, in which it is hard to read.
    """

    def __init__(self, source: Source, batch_size: int) -> None:
        self._source = source
        self._batch_size = batch_size
        self.failure: DataError | None = None

    def dataset(self, start: Position) -> tf.data.Dataset:
        """Batches from `start` on, all of the same size.

        What is left at the end and does not fill a batch is not trained on.
        """
        signature = Batch(
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([None, NUM_INTEGERS], tf.float32),
            tf.TensorSpec([None, NUM_CATEGORIES], tf.int64),
            tf.TensorSpec([None, len(Position._fields)], tf.int64),
        )
        return (
            tf.data.Dataset.from_generator(
                lambda: self._batches(start), output_signature=signature
            )
            .rebatch(self._batch_size, drop_remainder=True)
            .prefetch(4)
        )

    def _batches(self, start: Position) -> Iterator[Batch]:
        try:
            for chunk in self._source.chunks(start):
                yield encode(chunk)
        except DataError as error:
            self.failure = error
            raise


def encode(chunk: Chunk) -> Batch:
    """Scales the integers and hashes the categories of a chunk."""
    return Batch(
        chunk.labels,
        features.dense_features(chunk.integers),
        tf.transpose(features.keys(chunk.categories)),
        chunk.positions,
    )
