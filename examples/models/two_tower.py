"""Two towers: which items fit a user? Trained by `fit`, served with ids.

    python two_tower.py                        # drawn ratings
    python two_tower.py --data ml-100k/u.data  # MovieLens' own, or RecBole's

The ids go into the towers as strings: no vocabulary is counted first. Training is
an in-batch softmax: the other items of a batch are what a user's item is told from.
Popular items are in more batches, so each logit loses the log of how often its item
comes (Yi et al. 2019, "Sampling-bias-corrected neural modeling"). One liked item of
each user is held out: is it among the best ten of all that the user has not seen?
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import tfembed
from tfembed.errors import DataError
from tfembed.keras.layers import Embedding, TopK
from tfembed.keras.metrics import NDCGAtK, RecallAtK

LIKED = 4.0  # The least rating that counts.
SHOWN = 10


class Towers(keras.Model):
    """Scores each user of a batch with each item of the batch."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.users = Embedding(dim, key_dtype="string", name="users")
        self.items = Embedding(dim, key_dtype="string", name="items")
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


class BestItems(keras.Model):
    """Answers users with their best items."""

    def __init__(self, towers: Towers) -> None:
        super().__init__()
        self.towers = towers
        ids, rows = towers.items.table.export()
        self.top = TopK((ids, towers.item_tower(rows)), SHOWN)

    def call(self, users, seen=None):
        """The ids [batch, 10] of items that were not seen, best first."""
        vectors = self.towers.user_tower(self.towers.users(users))
        return {"items": self.top(vectors, exclude=seen)[0]}


def read(path: pathlib.Path | None, seed: int):
    """Returns liked (user, item) pairs: to train on, and one a user to test."""
    if path is None:
        ratings = tfembed.data.planted_ratings(500, 300, 30_000, seed)
    else:
        ratings = tfembed.data.read_ratings(path)
    liked = ratings.values >= LIKED
    pairs = np.stack([ratings.users, ratings.items])[:, liked]
    pairs = np.unique(pairs, axis=1)
    pairs = pairs[:, np.random.default_rng(seed).permutation(pairs.shape[1])]
    # The first pair of each user in this order is the test's.
    _, first, n = np.unique(pairs[0], return_index=True, return_counts=True)
    print(f"{len(n)} users; {np.sum(n == 1)} like one item and are not tested")
    test, pairs = first[n > 1], pairs.astype(str)
    return np.delete(pairs, test, axis=1), pairs[:, test]


def batches(pairs: np.ndarray, batch_size: int, seed: int) -> tf.data.Dataset:
    """Batches of (inputs, labels); a user's own item has its own number."""
    users, items = pairs
    _, place, counts = np.unique(items, return_inverse=True, return_counts=True)
    log_q = np.log(counts / counts.sum()).astype(np.float32)[place]
    inputs = {"user": users, "item": items, "log_q": log_q}
    data = tf.data.Dataset.from_tensor_slices(inputs)
    data = data.shuffle(len(users), seed=seed).batch(batch_size)
    return data.map(lambda batch: (batch, tf.range(tf.size(batch["item"]))))


def figures(found: tf.Tensor, wanted: np.ndarray) -> str:
    """Recall and NDCG of the ids that were found, as a line of a table."""
    metrics = RecallAtK(SHOWN), NDCGAtK(SHOWN)
    for metric in metrics:
        metric.update_state(tf.constant(wanted), found)
    return "".join(f"  {float(metric.result()):>9.3f}" for metric in metrics)


def main(arguments: list[str] | None = None) -> int:
    """Runs the program; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, help="a file of ratings")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    keras.utils.set_random_seed(given.seed)
    try:
        train, (users, wanted) = read(given.data, given.seed)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    model = Towers(given.dim)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=False)
    data = batches(train, 512, given.seed)
    model.fit(data, epochs=given.epochs, shuffle=False, verbose=2)
    best = BestItems(model)
    seen = tf.ragged.constant([train[1, train[0] == user] for user in users])
    items, counts = np.unique(train[1], return_counts=True)
    popular = TopK((items, counts[:, None].astype(np.float32)), SHOWN)
    ids, _ = popular(tf.ones([len(users), 1]), exclude=seen)
    print(f"\n{'':<16}  recall@{SHOWN}    NDCG@{SHOWN}")
    print(f"{'what is popular':<16}{figures(ids, wanted)}")
    ids = best(tf.constant(users), seen=seen)["items"]
    print(f"{'two towers':<16}{figures(ids, wanted)}")
    asked = tf.constant(users[:1])
    answer = best(asked)["items"]
    with tempfile.TemporaryDirectory() as folder:
        spec = tf.TensorSpec([None], tf.string, name="user")
        best.export(folder, input_signature=[spec], verbose=False)
        served = tf.saved_model.load(folder).signatures["serving_default"]
        same = served(user=asked)["items"] == answer
    print(f"served, the same: {bool(tf.reduce_all(same))}", end="; ")
    print(f"user {users[0]} is shown {answer[0].numpy().astype(str).tolist()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
