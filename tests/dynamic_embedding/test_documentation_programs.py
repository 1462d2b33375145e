"""TFRA's example programs and API pages of layers, policies and savers.

As in `test_documentation_examples.py`, told again in few lines each, with
tfembed in the place of `tensorflow_recommenders_addons`.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de


@pytest.fixture
def train_mode():
    yield
    de.enable_train_mode()


class DualChannels(tf.keras.Model):
    """The ratings program's model: two tables, and its call a tf.function."""

    def __init__(self, size, initializer):
        super().__init__()
        self.users, self.movies = (
            de.keras.layers.SquashedEmbedding(
                size, initializer=initializer, name=f"{name}_embedding"
            )
            for name in ("user", "movie")
        )
        self.hidden = tf.keras.layers.Dense(16, activation="relu")
        self.out = tf.keras.layers.Dense(5, activation="softmax")

    @tf.function
    def call(self, features):
        users = self.users(tf.reshape(features["user_id"], (-1, 1)))
        movies = self.movies(tf.reshape(features["movie_id"], (-1, 1)))
        return self.out(self.hidden(tf.concat([users, movies], axis=1)))


def test_the_ratings_program_trains_exports_and_serves(tmp_path, train_mode):
    random = np.random.default_rng(0)
    features = {
        name: random.integers(0, 40, 256) for name in ("movie_id", "user_id")
    }
    ratings = tf.one_hot(features["movie_id"] % 5, 5)
    dataset = tf.data.Dataset.from_tensor_slices((features, ratings)).batch(32)
    model = DualChannels(8, tf.keras.initializers.RandomNormal(0.0, 0.5))
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.Adam(0.02))
    model.compile(optimizer=optimizer, loss="mse", metrics=["AUC"])

    losses = model.fit(dataset, epochs=20, verbose=0).history["loss"]

    assert losses[-1] < losses[0] / 2
    distinct = len(set(features["user_id"].tolist()))
    assert int(model.users.params.size()) == distinct
    de.enable_inference_mode()
    spec = {
        name: tf.TensorSpec([None], tf.int64, name=name) for name in features
    }
    de.keras.models.save_model(
        model,
        tmp_path / "export",
        options=tf.saved_model.SaveOptions(namespace_whitelist=["TFRA"]),
        include_optimizer=False,
        signatures=model.call.get_concrete_function(spec),
    )
    served = tf.saved_model.load(str(tmp_path / "export"))
    batch = {name: tf.constant(ids[:16]) for name, ids in features.items()}
    (out,) = served.signatures["serving_default"](**batch).values()
    np.testing.assert_allclose(out, model(batch), rtol=1e-5)


def test_the_page_of_embedding():
    embedding = de.keras.layers.Embedding(8)
    ids = tf.constant([[15, 2], [4, 92], [22, 4]], dtype=tf.int64)
    assert embedding(ids).shape == (3, 2, 8)

    class Halved(de.keras.layers.BasicEmbedding):
        """The page says that layers may derive from it."""

        def call(self, ids):
            return super().call(ids) / 2

    halved = Halved(2, name="halved")
    halved.params.upsert([7], [[2.0, 4.0]])
    assert halved(tf.constant([7], tf.int64)).numpy().tolist() == [[1.0, 2.0]]


def test_the_page_of_field_wise_embedding():
    nslots = 3

    @tf.function
    def map_slot_fn(feature_id):
        return tf.math.mod(feature_id, nslots)

    ids = tf.constant([[23, 12, 0], [9, 13, 10]], dtype=tf.int64)
    embedding = de.keras.layers.FieldWiseEmbedding(2, nslots, map_slot_fn)
    prepared_keys = tf.range(0, 100, dtype=tf.int64)
    embedding.params.upsert(prepared_keys, tf.ones((100, 2), tf.float32))

    out = embedding(ids)

    assert out[:, :, 0].numpy().tolist() == [[2.0, 0.0, 1.0], [1.0, 2.0, 0.0]]


def test_the_page_of_savers(tmp_path):
    v = de.get_variable(
        "page_of_savers",
        devices=["/CPU:0", "/CPU:0"],
        dim=8,
        initializer=0.0,
        bp_v2=True,
        kv_creator=de.CuckooHashTableCreator(saver=de.FileSystemSaver()),
    )
    v.upsert([1, 2], [[1.0] * 8] * 2)
    path = tf.train.Checkpoint(v=v).save(tmp_path / "c")
    v.clear()
    tf.train.Checkpoint(v=v).restore(path)
    assert int(v.size()) == 2


def test_the_pages_of_restrict_policies():
    v = de.get_variable(
        "page_of_policies",
        dim=2,
        initializer=0.0,
        restrict_policy=de.TimestampRestrictPolicy,
    )
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.Adam())

    def loss():
        ids = tf.range(10, dtype=tf.int64)
        rows, kept = de.embedding_lookup(
            v, ids, name="policies", return_trainable=True
        )
        wrappers.append(kept)
        return tf.reduce_sum(rows)

    wrappers: list[de.TrainableWrapper] = []
    optimizer.minimize(loss, lambda: [wrappers[-1]])
    assert len(v.get_slot_variables(optimizer)) == 2
    v.restrict(num_reserved=4, trigger=6)

    assert int(v.size()) == 4
    assert int(v.restrict_policy.status.size()) == 4
    slots = v.get_slot_variables(optimizer)
    assert [int(slot.size()) for slot in slots] == [4, 4]


def test_the_pages_of_math():
    data = tf.constant([[1, 2], [3, 4], [5, 6]])
    out = de.math.sparse_segment_sum(data, [0, 2, 1], [0, 0, 2], num_segments=4)
    assert out.numpy().tolist() == [[6, 8], [0, 0], [3, 4], [0, 0]]
    sparse = tf.SparseTensor([[0, 1], [2, 0]], [7, 8], [4, 2])
    filled, is_empty = de.math.sparse_fill_empty_rows(sparse, 0)
    assert is_empty.numpy().tolist() == [False, True, False, True]
    assert filled.values.numpy().tolist() == [7, 0, 8, 0]
    reshaped = de.math.sparse_reshape(sparse, [2, 4])
    assert reshaped.indices.numpy().tolist() == [[0, 1], [1, 0]]
