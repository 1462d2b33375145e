"""Programs of the shape of TensorFlow Recommenders' tutorials, on Keras 3.

Told again in few lines each, with the change that docs/migrate/tfrs.md shows: a
layer of tfembed in the place of StringLookup and Embedding.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfembed.keras.layers import Embedding

USERS, FILMS, EXAMPLES = 20, 40, 512


def ratings():
    """Users who watch the three films after twice their own number."""
    draw = np.random.default_rng(0)
    users = draw.integers(0, USERS, EXAMPLES)
    films = (users[:, None] * 2 + draw.integers(0, 3, [EXAMPLES, 4])) % FILMS
    titles = np.char.add("film ", films.astype(str))
    return {
        "user_id": users.astype(str),
        "movie_title": titles[:, 0],
        "context": titles[:, 1:],
        "user_age": (users % 5).astype(np.int64),
        "user_rating": (1 + users % 5).astype(np.float32),
    }


def titles():
    return tf.constant([f"film {i}" for i in range(FILMS)])


def retrieval_loss(queries, candidates):
    """The softmax over the candidates of a batch, summed."""
    scores = tf.matmul(queries, candidates, transpose_b=True)
    own = tf.range(tf.shape(scores)[0])
    return tf.reduce_sum(
        keras.losses.sparse_categorical_crossentropy(
            own, scores, from_logits=True
        )
    )


class Task(keras.Model):
    """A model with a `task_loss` of its features, which have the labels too."""

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        return self.task_loss(x)

    def call(self, features):
        return self.query(features)


@keras.saving.register_keras_serializable("recommenders")
class Quickstart(Task):
    """Two towers, each an embedding."""

    def __init__(self, **options):
        super().__init__(**options)
        self.user_model = keras.Sequential([Embedding(8)])
        self.movie_model = keras.Sequential([Embedding(8)])

    def query(self, features):
        return self.user_model(features["user_id"])

    def task_loss(self, features):
        movies = self.movie_model(features["movie_title"])
        return retrieval_loss(self.query(features), movies)


@keras.saving.register_keras_serializable("recommenders")
class Deep(Quickstart):
    """Towers of several features, with dense layers above."""

    def __init__(self, **options):
        super().__init__(**options)
        self.ages = Embedding(4)
        self.dense = keras.Sequential([keras.layers.Dense(8)])

    def query(self, features):
        rows = [super().query(features), self.ages(features["user_age"])]
        return self.dense(tf.concat(rows, 1))


@keras.saving.register_keras_serializable("recommenders")
class Sequences(Quickstart):
    """The films of before, in order, as the query."""

    def __init__(self, **options):
        super().__init__(**options)
        self.user_model = keras.Sequential([Embedding(8), keras.layers.GRU(8)])

    def query(self, features):
        return self.user_model(features["context"])


@keras.saving.register_keras_serializable("recommenders")
class Multitask(Quickstart):
    """Ratings beside retrieval, of the same rows."""

    def __init__(self, **options):
        super().__init__(**options)
        self.rating = keras.Sequential([keras.layers.Dense(1)])

    def task_loss(self, features):
        user = self.query(features)
        movie = self.movie_model(features["movie_title"])
        error = self.rating(tf.concat([user, movie], 1))[:, 0]
        error -= features["user_rating"]
        return tf.reduce_mean(error**2) + 0.1 * retrieval_loss(user, movie)


def fitted(kind, epochs=6):
    keras.utils.set_random_seed(1)
    model = kind()
    model.compile(optimizer=keras.optimizers.Adagrad(0.5), run_eagerly=False)
    data = tf.data.Dataset.from_tensor_slices(ratings()).batch(128)
    losses = model.fit(data, epochs=epochs, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    return model


def best_titles(model, features, k):
    """As a brute-force index of all films answers."""
    scores = tf.matmul(
        model.query(features), model.movie_model(titles()), transpose_b=True
    )
    return tf.gather(titles(), tf.math.top_k(scores, k).indices).numpy()


def test_the_quickstart_finds_what_a_user_watches(tmp_path):
    model = fitted(Quickstart)
    seven = {"user_id": tf.constant(["7"])}
    found = {title.decode() for title in best_titles(model, seven, 3)[0]}
    assert found == {"film 14", "film 15", "film 16"}

    index = tf.Module()
    index.users, films = model.user_model, model.movie_model(titles())
    index.query = tf.function(
        lambda ids: (
            tf.math.top_k(
                tf.matmul(index.users(ids), films, transpose_b=True), 3
            ).indices
        ),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(index, tmp_path / "index")
    served = tf.saved_model.load(tmp_path / "index")
    places = set(served.query(tf.constant(["7"]))[0].numpy().tolist())
    assert places == {14, 15, 16}


@pytest.mark.parametrize("kind", [Deep, Sequences, Multitask])
def test_the_deeper_tutorials_train(kind):
    model = fitted(kind)
    assert len(model.movie_model.layers[0].table) <= FILMS


def test_a_ranking_model_is_saved_loaded_and_served(tmp_path):
    keras.utils.set_random_seed(1)
    names = ("user_id", "movie_title")
    inputs = {
        name: keras.Input((), dtype="string", name=name) for name in names
    }
    x0 = keras.layers.Concatenate()([Embedding(8)(inputs[n]) for n in names])
    # A layer of a deep and cross network.
    x = keras.layers.Multiply()([x0, keras.layers.Dense(16)(x0)])
    x = keras.layers.Add()([x, x0])
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile(
        keras.optimizers.Adagrad(0.3),
        "mse",
        metrics=[keras.metrics.RootMeanSquaredError()],
    )
    data = ratings()
    features = {name: tf.constant(data[name]) for name in names}
    losses = model.fit(
        features, data["user_rating"], epochs=8, batch_size=64, verbose=0
    ).history["loss"]
    assert losses[-1] < losses[0] / 4

    model.save(tmp_path / "ranker.keras")
    model.export(tmp_path / "served", verbose=False)
    few = {name: ids[:8] for name, ids in features.items()}
    scores = model(few)
    loaded = keras.saving.load_model(tmp_path / "ranker.keras")
    np.testing.assert_allclose(loaded(few), scores, 1e-6)
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(served.serve(few), scores, 1e-5)
