"""Serves a two-tower model: who, and what was seen, to the items to show."""

from __future__ import annotations

import pathlib

import numpy as np
import tensorflow as tf

import tfembed
from movielens.histories import Samples
from movielens.two_tower import Options, Retrieval, UserTower, feature_config


class RetrievalServer(tf.Module):
    """The tables without their slots, and the items' vectors.

    Args:
      checkpoint: what `save` wrote.
      options: those of training.
      items: int64 [n], what can be shown.
    """

    def __init__(
        self, checkpoint: str, options: Options, items: np.ndarray
    ) -> None:
        super().__init__()
        self.tower = UserTower(options, seed=0)
        self.embedding = tfembed.TPUEmbeddingForServing(
            feature_config(options), None
        )
        self.embedding.build()
        tf.train.Checkpoint(tower=self.tower, embedding=self.embedding).restore(
            checkpoint
        ).expect_partial()
        self.items = tf.constant(items)
        self.vectors = tf.math.l2_normalize(
            self.embedding({"item": self.items})["item"], -1
        )

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, "user"),
            tf.TensorSpec([None, None], tf.int64, "history"),
            tf.TensorSpec([None], tf.int64, "lengths"),
        ]
    )
    def scores(
        self, user: tf.Tensor, history: tf.Tensor, lengths: tf.Tensor
    ) -> tf.Tensor:
        """How well each item fits, float32 [B, n]."""
        ragged = tf.RaggedTensor.from_tensor(history, lengths)
        rows = self.embedding({"user": user, "history": ragged})
        vectors = self.tower(rows["user"], rows["history"], lengths)
        return vectors @ tf.transpose(self.vectors)


def save(model: Retrieval, path: str | pathlib.Path) -> str:
    """Writes a checkpoint; returns its prefix."""
    return tf.train.Checkpoint(
        tower=model.tower, embedding=model.embedding
    ).save(str(path))


def hit_rate(
    scores: np.ndarray,
    test: Samples,
    items: np.ndarray,
    seen: list[list[int]],
    k: int,
) -> float:
    """How often the test item is among the k best that were not seen.

    Args:
      scores: [n, number of items]; changed.
      test: n samples.
      items: what the columns of `scores` are, ascending.
      seen: per sample what is left out.
      k: how many are shown.
    """
    for row, watched in zip(scores, seen, strict=True):
        row[np.searchsorted(items, watched)] = -np.inf
    best = np.argpartition(-scores, k, axis=1)[:, :k]
    return float((items[best] == test.items[:, None]).any(1).mean())
