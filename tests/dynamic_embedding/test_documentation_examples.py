"""The documents' examples of lookups run: ours, and TFRA's by another import.

TFRA's tutorial, API pages and docstrings are told again in few lines each; where
they say `tfra.dynamic_embedding` or `de`, it is tfembed's.
"""

from __future__ import annotations

import pathlib
import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de

tfra = SimpleNamespace(dynamic_embedding=de)
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "dynamic_embedding.md"


def keys(*values):
    return tf.constant(values, tf.int64)


def test_the_examples_of_our_page_run(capsys):
    lookups = PAGE.read_text().partition("## Training")[0]
    names: dict[str, object] = {}
    examples = re.findall(r"```python\n(.*?)```", lookups, re.DOTALL)
    for example in examples:
        exec(example, names)

    before, after = re.findall(r"(\d+\.\d+)", capsys.readouterr().out)
    assert float(after) < float(before) / 10
    assert int(names["users"].size()) == 3
    rows = names["ranker"].table.lookup(keys(5, 9, 1)).numpy()[:, 0]
    np.testing.assert_allclose(rows, [0.1 - 0.2, 0.0, 0.0], atol=1e-6)


class NeuralFiltering(tf.Module):
    """The tutorial's model: ids without a vocabulary, then dense layers."""

    def __init__(self):
        initializer = tf.keras.initializers.RandomNormal(-1, 1)
        self.users, self.movies = (
            tfra.dynamic_embedding.get_variable(
                name=f"tutorial_{name}", dim=4, initializer=initializer
            )
            for name in ("users", "movies")
        )
        self.dense = [
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(1),
        ]

    def rows(self, variable, ids, name):
        distinct, places = np.unique(ids, return_inverse=True)
        rows, trainable = tfra.dynamic_embedding.embedding_lookup(
            params=variable, ids=distinct, name=name, return_trainable=True
        )
        return tf.gather(rows, places), trainable

    def __call__(self, batch):
        users, user_wrapper = self.rows(
            self.users, batch["user_id"], "user-id-weights"
        )
        movies, movie_wrapper = self.rows(
            self.movies, batch["movie_id"], "movie-id-weights"
        )
        out = tf.concat([users, movies], axis=1)
        for layer in self.dense:
            out = layer(out)
        loss = tf.reduce_mean((batch["user_rating"] - out[:, 0]) ** 2)
        return loss, [user_wrapper, movie_wrapper]

    @property
    def weights(self):
        return [w for layer in self.dense for w in layer.trainable_variables]


def test_the_tutorial_trains_on_ratings():
    random = np.random.default_rng(0)
    batch = {
        "movie_id": tf.constant(random.integers(0, 2**60, 64)),
        "user_id": tf.constant(random.integers(0, 5, 64)),
        "user_rating": tf.constant(random.normal(3, 1, 64), tf.float32),
    }
    model = NeuralFiltering()
    optimizer = tfra.dynamic_embedding.DynamicEmbeddingOptimizer(
        tf.keras.optimizers.Adam(learning_rate=0.05)
    )
    losses = []
    for _ in range(20):
        with tf.GradientTape() as tape:
            loss, wrappers = model(batch)
        losses.append(float(loss))
        variables = model.weights + wrappers
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    assert losses[-1] < losses[0] / 2
    assert int(model.users.size()) == 5
    assert int(model.movies.size()) == 64


def test_a_trainable_found_by_name_goes_to_the_optimizer():
    params = de.get_variable("by_name", dim=2, initializer=1.0)
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.SGD(0.5))

    def loss():
        rows, _wrapper = de.embedding_lookup(
            params, keys(1, 2), name="in-eager", return_trainable=True
        )
        kept.append(_wrapper)
        return tf.reduce_sum(rows)

    kept: list[de.TrainableWrapper] = []
    optimizer.minimize(
        loss, var_list=lambda: [params.get_eager_trainable_by_name("in-eager")]
    )
    np.testing.assert_allclose(params.lookup(keys(1, 2)), np.full([2, 2], 0.5))


def test_a_module_with_a_shadow_trains_in_a_function():
    class TestModule(tf.Module):
        def __init__(self):
            self.params = de.get_variable("in_module", dim=2, initializer=0.0)
            self.shadow = de.shadow_ops.ShadowVariable(self.params)

        @tf.function
        def train(self, ids):
            with tf.GradientTape() as tape:
                rows = de.shadow_ops.embedding_lookup(self.shadow, ids)
                loss = tf.reduce_sum(rows)
            gradients = tape.gradient(loss, self.trainable_variables)
            optimizer.apply_gradients(
                zip(gradients, self.trainable_variables, strict=True)
            )

    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.SGD(1.0))
    module = TestModule()
    module.train(keys(5, 5, 5))  # TFRA subtracts 1.
    np.testing.assert_array_equal(module.params.lookup(keys(5)), [[-3, -3]])


def test_a_partition_function_deals_keys_to_devices():
    def partition(keys, shard_num):
        return tf.cast(keys % shard_num, dtype=tf.int32)

    v = de.get_variable(
        "partitioned",
        dim=1,
        devices=["/CPU:0", "/CPU:0"],
        partitioner=partition,
        initializer=0.0,
    )
    v.upsert(keys(0, 1, 2), tf.constant([[0.0], [1.0], [2.0]]))
    assert [int(v.size(i)) for i in range(2)] == [2, 1]


@pytest.mark.parametrize("ragged", [False, True])
def test_a_safe_lookup_combines_as_its_page_says(ragged):
    """[id 1 weight 2, id 3 weight 0.5], [id -1], [], [id 1 weight 3]."""
    v = de.get_variable(f"combined_{ragged}", dim=2, initializer=0.0)
    v.upsert(
        keys(0, 1, 3, -1), [[9.0, 9.0], [1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    )
    ids = tf.ragged.constant([[1, 3], [-1], [], [1]], tf.int64)
    weights = tf.ragged.constant([[2.0, 0.5], [1.0], [], [3.0]])
    look_up = de.ragged_embedding_ops.safe_embedding_lookup_sparse
    if not ragged:
        ids, weights = ids.to_sparse(), weights.to_sparse()
        look_up = de.safe_embedding_lookup_sparse

    out = look_up(v, ids, weights, combiner="mean", default_id=0)

    mean = (np.array([1, 2]) * 2 + np.array([3, 4]) * 0.5) / 2.5
    np.testing.assert_allclose(out, [mean, [5, 6], [9, 9], [1, 2]], rtol=1e-6)
