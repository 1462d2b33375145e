"""Two-tower retrieval by `fit`, with string ids: which items fit a user?

    python examples/retrieval_fit.py                        # drawn ratings
    python examples/retrieval_fit.py --data ml-100k/u.data  # MovieLens' own

The ids go into the towers as they are, as strings: no vocabulary is counted
first. Training is an in-batch softmax: the other items of a batch are what a
user's item is told from. Popular items are in more batches, so each logit loses
the log of how often its item comes (Yi et al. 2019, "Sampling-bias-corrected
neural modeling for large corpus item recommendations").
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import tfembed
from tfembed.errors import DataError

LIKED = 4.0  # The least rating that counts.
SHOWN = 10


class Towers(keras.Model):
    """Scores each user of a batch with each item of the batch."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.users = tfembed.keras.layers.Embedding(dim, key_dtype="string")
        self.items = tfembed.keras.layers.Embedding(dim, key_dtype="string")
        self.user_tower = keras.layers.Dense(dim)
        self.item_tower = keras.layers.Dense(dim)

    def call(self, inputs):
        """The logits [batch, batch] of users by items."""
        users = self.user_tower(self.users(inputs["user"]))
        items = self.item_tower(self.items(inputs["item"]))
        logits = tf.matmul(users, items, transpose_b=True) - inputs["log_q"]
        # Another user's item that is also this user's is no wrong answer.
        same = tf.equal(inputs["item"][:, None], inputs["item"][None])
        others = same & ~tf.eye(tf.shape(same)[0], dtype=tf.bool)
        return tf.where(others, tf.float32.min, logits)

    def item_vectors(self):
        """The ids and vectors of all items that the table has."""
        ids, rows = self.items.table.export()
        return ids, self.item_tower(rows)

    def user_vectors(self, users):
        """The vectors [n, dim] of users by their ids."""
        return self.user_tower(self.users(users))


def read(path: pathlib.Path | None, seed: int):
    """Returns liked (user, item) pairs: to train on, and one a user to test."""
    ratings = (
        tfembed.data.planted_ratings(500, 300, 30_000, seed)
        if path is None
        else tfembed.data.read_ratings(path)
    )
    liked = ratings.values >= LIKED
    pairs = np.unique(
        np.stack([ratings.users, ratings.items])[:, liked], axis=1
    )
    pairs = pairs[:, np.random.default_rng(seed).permutation(pairs.shape[1])]
    # The first pair of each user in this order is the test's.
    _, first = np.unique(pairs[0], return_index=True)
    return np.delete(pairs, first, axis=1).astype(str), pairs[:, first].astype(
        str
    )


def batches(pairs: np.ndarray, batch_size: int, seed: int) -> tf.data.Dataset:
    """Batches of (inputs, labels); a user's own item has its own number."""
    _, place, counts = np.unique(
        pairs[1], return_inverse=True, return_counts=True
    )
    log_q = np.log(counts / counts.sum()).astype(np.float32)[place]
    data = tf.data.Dataset.from_tensor_slices(
        {"user": pairs[0], "item": pairs[1], "log_q": log_q}
    )
    data = data.shuffle(pairs.shape[1], seed=seed).batch(batch_size)
    return data.map(
        lambda inputs: (inputs, tf.range(tf.shape(inputs["item"])[0]))
    )


def recall(model: Towers, train: np.ndarray, test: np.ndarray) -> dict:
    """Returns how often the held-out item is among those shown."""
    ids, vectors = model.item_vectors()
    ids = ids.numpy().astype(str)
    scores = model.user_vectors(tf.constant(test[0])) @ tf.transpose(vectors)
    place = {item: i for i, item in enumerate(ids)}
    popularity = np.bincount(
        [place[item] for item in train[1]], minlength=len(ids)
    )
    scores = {
        "what is popular": np.tile(
            popularity.astype(np.float32), [len(test[0]), 1]
        ),
        "two towers": scores.numpy().copy(),
    }
    row = {user: i for i, user in enumerate(test[0])}
    figures = {}
    for name, matrix in scores.items():
        for user, item in zip(*train):  # What a user has seen is not shown.
            matrix[row[user], place[item]] = -np.inf
        best = tf.math.top_k(matrix, SHOWN).indices.numpy()
        figures[name] = np.mean([i in ids[b] for i, b in zip(test[1], best)])
    return figures


def main(arguments: list[str] | None = None) -> int:
    """Runs the example; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, help="MovieLens' ratings")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    keras.utils.set_random_seed(given.seed)
    try:
        train, test = read(given.data, given.seed)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    model = Towers(given.dim)
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    model.fit(
        batches(train, given.batch_size, given.seed),
        epochs=given.epochs,
        verbose=2,
    )
    print(f"\nrecall@{SHOWN} over {test.shape[1]} users:")
    for name, figure in recall(model, train, test).items():
        print(f"  {name:<16}  {figure:.3f}")
    user = test[0][0]
    ids, vectors = model.item_vectors()
    scores = model.user_vectors(tf.constant([user])) @ tf.transpose(vectors)
    best = tf.gather(ids, tf.math.top_k(scores[0], 5).indices).numpy()
    print(f"user {user} is shown {[item.decode() for item in best]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
