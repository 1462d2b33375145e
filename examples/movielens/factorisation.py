"""Biased matrix factorisation (Koren, Bell and Volinsky, 2009) on hash tables.

    rating(u, i) ~ mean + b_u + c_i + <p_u, q_i>
    loss = sum (rating - prediction)^2
         + l2 * (|p_u|^2 + |q_i|^2) + l2_biases * (b_u^2 + c_i^2)

The sum is over the ratings of a batch, so a user counts once per rating: ids
repeat within a batch, and their gradients add up.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import optimizers
from tfembed.data.movielens import Ratings


@dataclasses.dataclass(frozen=True)
class Options:
    """What there is to choose.

    Attributes:
      dim: width of the factors.
      epochs: passes over the ratings.
      batch_size: ratings per step.
      learning_rate: Adagrad's, at first.
      decay: of the learning rate, per epoch.
      l2, l2_biases: weights of the penalties.
      scale: the factors' initial length.
    """

    dim: int = 64
    epochs: int = 40
    batch_size: int = 4096
    learning_rate: float = 0.5
    decay: float = 0.95
    l2: float = 0.12
    l2_biases: float = 0.02
    scale: float = 1.0


class Factorisation(tf.Module):
    """The model: four tables and the mean.

    Args:
      mean: of the ratings.
      num_ratings: in the training part; it sets the length of an epoch.
      options: the choices.
      seed: of the initial factors.
    """

    def __init__(
        self, mean: float, num_ratings: int, options: Options, seed: int
    ) -> None:
        super().__init__()
        self.options = options
        self.mean = tf.constant(mean, tf.float32)
        self.steps = max(1, round(num_ratings / options.batch_size))

        def factors(name: str, place: int) -> de.Variable:
            stddev = options.scale / math.sqrt(options.dim)
            initial = tf.keras.initializers.RandomNormal(
                0.0, stddev, seed=2 * seed + place
            )
            return de.Variable(dim=options.dim, name=name, initializer=initial)

        self.users = factors("user_factors", 0)
        self.items = factors("item_factors", 1)
        self.user_biases = de.Variable(dim=1, name="user_biases")
        self.item_biases = de.Variable(dim=1, name="item_biases")
        rate = tf.keras.optimizers.schedules.ExponentialDecay(
            options.learning_rate, self.steps, options.decay, staircase=True
        )
        self.optimizer = de.DynamicEmbeddingOptimizer(
            optimizers.Adagrad(learning_rate=rate)
        )

    @property
    def tables(self) -> list[de.Variable]:
        """The variables that are trained."""
        return [self.users, self.items, self.user_biases, self.item_biases]

    def _rows(self, users: tf.Tensor, items: tf.Tensor) -> list[tf.Tensor]:
        ids = (users, items, users, items)
        return [
            de.embedding_lookup(table, keys, name=table.name)
            for table, keys in zip(self.tables, ids)
        ]

    @tf.function(reduce_retracing=True)
    def train_epoch(
        self, users: tf.Tensor, items: tf.Tensor, values: tf.Tensor
    ) -> tf.Tensor:
        """One pass, in a new order; returns the mean squared error."""
        n = tf.size(users)
        order = tf.random.shuffle(tf.range(n))
        total = tf.zeros([])
        for step in tf.range(self.steps):
            batch = order[step * n // self.steps : (step + 1) * n // self.steps]
            total += self._train_step(
                tf.gather(users, batch),
                tf.gather(items, batch),
                tf.gather(values, batch),
            )
        return total / tf.cast(n, tf.float32)

    def _train_step(
        self, users: tf.Tensor, items: tf.Tensor, values: tf.Tensor
    ) -> tf.Tensor:
        with tf.GradientTape() as tape:
            p, q, b, c = self._rows(users, items)
            dots = tf.reduce_sum(p * q, 1)
            error = values - self.mean - b[:, 0] - c[:, 0] - dots
            squares = tf.reduce_sum(error**2)
            loss = (
                squares
                + self.options.l2 * tf.reduce_sum(p**2 + q**2)
                + self.options.l2_biases * tf.reduce_sum(b**2 + c**2)
            )
        gradients = tape.gradient(loss, self.tables)
        self.optimizer.apply_gradients(zip(gradients, self.tables))
        return squares

    def predict(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """The predicted ratings; who was never seen counts as average."""
        ids = (users, items, users, items)
        rows = []
        for table, keys in zip(self.tables, ids):
            values, exists = table.lookup(keys, return_exists=True)
            rows.append(np.where(exists[:, None], values, 0.0))
        p, q, b, c = rows
        return self.mean.numpy() + b[:, 0] + c[:, 0] + np.sum(p * q, axis=1)


def train(
    ratings: Ratings,
    options: Options,
    seed: int,
    report: Callable[[int, float], None] | None = None,
) -> Factorisation:
    """Fits a model.

    Args:
      ratings: the training part.
      options: the choices.
      seed: of initial factors and order; the same gives the same model.
      report: called after each epoch with its number and the root-mean-square
        error of its batches.
    """
    tf.random.set_seed(seed)
    model = Factorisation(
        float(ratings.values.mean()), len(ratings), options, seed
    )
    users, items, values = map(
        tf.constant, (ratings.users, ratings.items, ratings.values)
    )
    for epoch in range(options.epochs):
        squares = model.train_epoch(users, items, values)
        if report is not None:
            report(epoch, math.sqrt(float(squares)))
    return model


def root_mean_square_error(model: Factorisation, ratings: Ratings) -> float:
    """Of predictions clipped to the range of `ratings`."""
    low, high = ratings.values.min(), ratings.values.max()
    predicted = model.predict(ratings.users, ratings.items)
    errors = np.clip(predicted, low, high) - ratings.values
    return float(np.sqrt(np.mean(errors.astype(np.float64) ** 2)))
