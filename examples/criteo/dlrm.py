"""The dense part of a DLRM (Naumov et al., 2019, arXiv:1906.00091)."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from tfembed.data.criteo import NUM_CATEGORIES, NUM_INTEGERS


class Dlrm(keras.Model):
    """From integers and rows of categories to the logit of a click.

        z0 = bottom(integers), z1 .. z26 = the categories' rows
        logit = top(z0, z1, ..., z26, <zi, zj> for all i > j)

    Args:
      dim: width of the rows, and so of z0.
      bottom_units: hidden layers of the bottom network.
      top_units: hidden layers of the top network.
    """

    def __init__(
        self,
        dim: int,
        *,
        bottom_units: Sequence[int] = (64,),
        top_units: Sequence[int] = (64,),
    ) -> None:
        super().__init__()
        vectors = 1 + NUM_CATEGORIES
        self.bottom = _mlp(NUM_INTEGERS, (*bottom_units, dim), "bottom")
        self.top = _mlp(
            vectors * dim + vectors * (vectors - 1) // 2,
            (*top_units, 1),
            "top",
        )
        self.built = True

    def call(self, integers: tf.Tensor, rows: Sequence[tf.Tensor]) -> tf.Tensor:
        """The logits [n] of integers [n, 13] and, 26 times, rows [n, dim]."""
        vectors = tf.stack([self.bottom(integers), *rows], axis=1)
        count, dim = vectors.shape[1:]
        flat = tf.reshape(vectors, [-1, count * dim])
        features = tf.concat([flat, dots(vectors)], axis=1)
        return tf.squeeze(self.top(features), axis=1)


def dots(vectors: tf.Tensor) -> tf.Tensor:
    """All <vi, vj> with i > j: [n, k, dim] -> [n, k (k - 1) / 2]."""
    k = vectors.shape[1]
    square = tf.matmul(vectors, vectors, transpose_b=True)
    below_diagonal = [i * k + j for i in range(k) for j in range(i)]
    return tf.gather(tf.reshape(square, [-1, k * k]), below_diagonal, axis=1)


def _mlp(width: int, units: Sequence[int], name: str) -> keras.Sequential:
    layers = [keras.layers.Dense(n, activation="relu") for n in units[:-1]]
    layers.append(keras.layers.Dense(units[-1]))
    return keras.Sequential([keras.Input([width]), *layers], name=name)
