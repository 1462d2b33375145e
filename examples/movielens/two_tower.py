"""Two-tower retrieval (Covington et al., 2016; Yi et al., 2019) on TPUEmbedding.

    u = W [user row, sum_j a_j h_j] with h_j the j-th latest item's row
    v = item row
    loss = cross-entropy of softmax_k(<u_i, v_k> / t - log q_k) over the batch's
    items k, q_k the frequency of item k

Tables have no vocabulary: ids are as in the file. The history is a sequence
feature of the item table.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

import tfembed
from movielens.histories import Samples


@dataclasses.dataclass(frozen=True)
class Options:
    """What there is to choose.

    Attributes:
      dim: width of the towers.
      length: how many of the latest items count.
      epochs: passes over the samples.
      batch_size: samples per step.
      learning_rate: Adagrad's, of the tables.
      dense_rate: Adam's, of the rest.
      temperature: of the softmax.
    """

    dim: int = 32
    length: int = 20
    epochs: int = 8
    batch_size: int = 512
    learning_rate: float = 0.1
    dense_rate: float = 2e-3
    temperature: float = 0.2


def feature_config(options: Options) -> dict[str, tfembed.FeatureConfig]:
    """User, item and history; the latter two share a table."""
    users = tfembed.TableConfig(None, options.dim, name="users", seed=1)
    items = tfembed.TableConfig(None, options.dim, name="items", seed=2)
    return {
        "user": tfembed.FeatureConfig(users),
        "item": tfembed.FeatureConfig(items),
        "history": tfembed.FeatureConfig(
            items, max_sequence_length=options.length
        ),
    }


class UserTower(tf.Module):
    """The dense part: how a user's row and history become one vector."""

    def __init__(self, options: Options, seed: int) -> None:
        super().__init__()
        dim = options.dim
        start = tf.random.stateless_normal([dim, dim], [seed, 0]) * 0.01
        self.from_history = tf.Variable(tf.eye(dim) + start)
        self.from_user = tf.Variable(tf.eye(dim) + start)
        # The latest items weigh more, to begin with.
        self.places = tf.Variable(
            -0.1 * tf.range(options.length, dtype=tf.float32)
        )

    def __call__(
        self, user: tf.Tensor, history: tf.Tensor, lengths: tf.Tensor
    ) -> tf.Tensor:
        """[B, dim] of length 1, from [B, dim], [B, L, dim] and [B]."""
        is_there = tf.sequence_mask(lengths, history.shape[1])
        attention = tf.where(is_there, self.places, -1e9)
        weights = tf.nn.softmax(attention) * tf.cast(is_there, tf.float32)
        seen = tf.einsum("bl,bld->bd", weights, history)
        joint = user @ self.from_user + seen @ self.from_history
        return tf.math.l2_normalize(joint, -1)


class Retrieval:
    """The model while it trains."""

    def __init__(self, options: Options, seed: int) -> None:
        self.options = options
        self.tower = UserTower(options, seed)
        self.embedding = tfembed.TPUEmbedding(
            feature_config(options), tfembed.Adagrad(options.learning_rate)
        )
        self.optimizer = tf.keras.optimizers.Adam(options.dense_rate)
        self.optimizer.build(self.tower.trainable_variables)

    @tf.function
    def train_epoch(self, dataset: tf.data.Dataset) -> tf.Tensor:
        """Trains on all batches; the mean loss."""
        total, steps = tf.constant(0.0), tf.constant(0.0)
        for packed, lengths, log_frequency in dataset:
            total += self._step(packed, lengths, log_frequency)
            steps += 1.0
        return total / steps

    def _step(
        self, packed: Any, lengths: tf.Tensor, log_frequency: tf.Tensor
    ) -> tf.Tensor:
        self.embedding.enqueue(packed)
        rows = self.embedding.dequeue()
        with tf.GradientTape() as tape:
            tape.watch(rows)
            users = self.tower(rows["user"], rows["history"], lengths)
            items = tf.math.l2_normalize(rows["item"], -1)
            logits = users @ tf.transpose(items) / self.options.temperature
            labels = tf.range(tf.shape(logits)[0])
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels, logits - log_frequency
                )
            )
        variables = self.tower.trainable_variables
        by_rows, by_variables = tape.gradient(loss, (rows, variables))
        self.embedding.apply_gradients(by_rows)
        self.optimizer.apply_gradients(zip(by_variables, variables))
        return loss


def batches(samples: Samples, options: Options, seed: int) -> tf.data.Dataset:
    """Shuffled batches: packed features, lengths, log frequency of the items."""
    _, place, count = np.unique(
        samples.items, return_inverse=True, return_counts=True
    )
    log_frequency = np.log(count[place] / len(samples)).astype(np.float32)

    def ready(
        user: tf.Tensor,
        item: tf.Tensor,
        history: tf.Tensor,
        lengths: tf.Tensor,
        frequency: tf.Tensor,
    ) -> tuple[Any, tf.Tensor, tf.Tensor]:
        ragged = tf.RaggedTensor.from_tensor(history, lengths)
        features = {"user": user, "item": item, "history": ragged}
        return tfembed.pack_features(features), lengths, frequency

    dataset = tf.data.Dataset.from_tensor_slices(
        (
            samples.users,
            samples.items,
            samples.histories,
            samples.lengths,
            log_frequency,
        )
    )
    dataset = dataset.shuffle(len(samples), seed=seed)
    dataset = dataset.batch(options.batch_size, drop_remainder=True)
    return dataset.map(ready).prefetch(2)


def train(samples: Samples, options: Options, seed: int) -> Retrieval:
    """A model of these samples; prints the loss of each epoch."""
    model = Retrieval(options, seed)
    dataset = batches(samples, options, seed)
    for epoch in range(options.epochs):
        loss = float(model.train_epoch(dataset))
        print(
            f"epoch {epoch + 1} of {options.epochs}: loss {loss:.3f}",
            flush=True,
        )
    return model
