"""Subclassed models: Keras loads and exports them by tracing with floats."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from keras_layers import small_model
from tfembed import errors
from tfembed.dynamic_embedding.keras import models
from tfembed.keras.layers import DistributedEmbedding

SIZES = {"user": 2, "bag": 4, "last": 12}


class Base(keras.Model):
    def __init__(self, layer, **options):
        super().__init__(**options)
        self.tables = layer
        self.head = keras.layers.Dense(1)

    def of_rows(self, rows):
        flat = [tf.reshape(rows[n], [-1, size]) for n, size in SIZES.items()]
        return self.head(tf.concat(flat, -1))


@keras.saving.register_keras_serializable("subclassed")
class OfFeatures(Base):
    """A model of small_model's features, or of their `preprocess`ed form."""

    def __init__(self, **options):
        super().__init__(small_model.layer(), **options)

    def call(self, inputs):
        return self.of_rows(self.tables(inputs))


@keras.saving.register_keras_serializable("subclassed")
class Weighted(OfFeatures):
    """Its input has the weights of the bags."""

    def call(self, inputs):
        weights = {"user": None, "bag": inputs["weights"], "last": None}
        return self.of_rows(self.tables(inputs["ids"], weights))


@keras.saving.register_keras_serializable("subclassed")
class OfWords(Base):
    """A model of string ids."""

    def __init__(self, **options):
        words = tfembed.TableConfig(
            None, 2, name="words", key_dtype=tf.string, seed=3
        )
        features = {"word": tfembed.FeatureConfig(words)}
        super().__init__(DistributedEmbedding(features, tfembed.SGD(0.1)))

    def call(self, inputs):
        return self.head(self.tables(inputs)["word"])


@keras.saving.register_keras_serializable("subclassed")
class OfPairs(Base):
    """A model of sparse ids of rank 3."""

    def __init__(self, **options):
        feature = tfembed.FeatureConfig(tfembed.TableConfig(8, 2))
        super().__init__(DistributedEmbedding(feature, tfembed.SGD(0.1)))

    def call(self, inputs):
        return self.head(tf.reduce_sum(self.tables(inputs), 1))


def _ids(n=8):
    inputs, _ = small_model.data(n)
    return {name: tf.constant(ids) for name, ids in inputs.items()}


def _case(kind):
    """A model and its inputs."""
    if kind == "words":
        return OfWords(), {"word": tf.constant(list("abcdefgh"))}
    if kind == "pairs":
        ids = np.arange(32).reshape(8, 2, 2) % 8
        return OfPairs(), tf.sparse.from_dense(ids)
    if kind == "weighted":
        weights = tf.random.stateless_uniform([8, 3], [1, 2])
        return Weighted(), {"ids": _ids(), "weights": weights}
    model = OfFeatures()
    if kind == "dense":
        return model, _ids()
    if kind == "ragged":
        return model, small_model.batch(8)
    if kind == "packed strings":
        model = OfWords()
        words = {"word": tf.constant(list("abcdefgh"))}
        return model, model.tables.preprocess(words)
    return model, model.tables.preprocess(small_model.batch(8))


KINDS = ("dense", "ragged", "weighted", "words", "pairs")


def _fitted(kind):
    model, inputs = _case(kind)
    data = tf.data.Dataset.from_tensors((inputs, np.ones([8, 1], np.float32)))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    model.fit(data, epochs=3, verbose=0)
    return model, data


@pytest.mark.parametrize("kind", [*KINDS, "packed", "packed strings"])
def test_a_loaded_model_predicts_and_trains_on(kind, tmp_path):
    model, data = _fitted(kind)
    model.save(tmp_path / "model.keras")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = keras.saving.load_model(tmp_path / "model.keras")

    pair = (model, loaded)
    np.testing.assert_array_equal(*[m.predict(data, verbose=0) for m in pair])
    for one in pair:
        one.fit(data, verbose=0)
    np.testing.assert_allclose(
        *[m.predict(data, verbose=0) for m in pair], 1e-5, 1e-6
    )


def _as_floats(inputs):
    return {name: tf.cast(ids, tf.float32) for name, ids in inputs.items()}


def test_float_ids_are_refused_at_once():
    model = OfFeatures()
    packed = model.tables.preprocess(_ids())
    for inputs in (_ids(), packed):
        with pytest.raises(errors.DtypeError, match=r"must be int.*float32"):
            model.tables(_as_floats(inputs))


@pytest.mark.parametrize("pack", [False, True])
def test_fit_refuses_float_ids_and_changes_nothing(pack):
    model = OfFeatures()
    inputs = model.tables.preprocess(_ids()) if pack else _ids()
    model.compile("sgd", "mse")
    before = small_model.rows(model.tables)
    data = tf.data.Dataset.from_tensors((_as_floats(inputs), np.ones([8, 1])))

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"must be int.*float32"
    ):
        model.fit(data, verbose=0)

    for name, rows in small_model.rows(model.tables).items():
        np.testing.assert_array_equal(rows, before[name])


def test_float_ids_make_no_rows():
    words = tfembed.TableConfig(None, 2, name="users", seed=3)
    layer = DistributedEmbedding(tfembed.FeatureConfig(words), tfembed.SGD(0.1))
    step = tf.function(lambda ids: layer(ids, training=True))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="must be integers"
    ):
        step(tf.ones([3]))
    assert int(layer.get_embedding_tables()["users"].size()) == 0


@pytest.mark.parametrize("kind", [*KINDS, "packed"])
def test_an_export_without_a_signature_is_refused(kind, tmp_path):
    model, _ = _fitted(kind)
    with pytest.raises(errors.ArgumentError, match="`input_signature` of"):
        model.export(tmp_path / "served", verbose=False)
    assert not (tmp_path / "served").exists()


@pytest.mark.parametrize("kind", ["dense", "packed"])
def test_an_export_with_a_signature_serves(kind, tmp_path):
    model, data = _fitted(kind)
    inputs = next(iter(data))[0]
    signature = tf.nest.map_structure(tf.TensorSpec.from_tensor, inputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")

    loaded.export(
        tmp_path / "served", verbose=False, input_signature=[signature]
    )

    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(
        served.serve(inputs), model.predict(data, verbose=0), 1e-5, 1e-6
    )


def test_save_model_asks_for_signatures(tmp_path):
    model, _ = _fitted("dense")
    with pytest.raises(errors.ArgumentError, match="`signatures` of"):
        models.save_model(model, tmp_path / "served")


@keras.saving.register_keras_serializable("subclassed")
class OfTowers(keras.Model):
    """Towers of single layers, whose keys the first batch settles."""

    def __init__(self, **options):
        super().__init__(**options)
        self.user = tfembed.keras.layers.Embedding(2, name="users")
        self.film = keras.Sequential(
            [
                tfembed.keras.layers.Embedding(2, mask_zero=True, name="films"),
                keras.layers.Dense(2),
            ]
        )
        self.unused = tfembed.keras.layers.Embedding(2, name="unused")

    def call(self, inputs):
        user, film = self.user(inputs["user"]), self.film(inputs["film"])
        return tf.reduce_sum(user * film, -1)


def _towers(word):
    model = OfTowers()
    model.compile(keras.optimizers.Adam(0.1), "mse")
    ids = {"user": tf.constant([word, word * 2]), "film": tf.constant([7, 8])}
    data = tf.data.Dataset.from_tensors((ids, tf.constant([3.0, 1.0])))
    model.fit(data, epochs=2, verbose=0)
    return model, data


@pytest.mark.parametrize("word", ["ann", 7])
def test_a_loaded_model_has_the_rows_of_keys_that_a_batch_settled(
    word, tmp_path
):
    model, data = _towers(word)
    model.save(tmp_path / "model.keras")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = keras.saving.load_model(tmp_path / "model.keras")

    pair = (model, loaded)
    assert loaded.user.table.key_dtype == model.user.table.key_dtype
    np.testing.assert_array_equal(*[m.predict(data, verbose=0) for m in pair])
    for one in pair:
        one.fit(data, verbose=0)
    np.testing.assert_allclose(
        *[m.predict(data, verbose=0) for m in pair], 1e-5, 1e-6
    )
    assert loaded.unused.table is None


class OfOne(keras.Model):
    """Its `build` says that there is nothing to build."""

    def __init__(self):
        super().__init__()
        self.table = tfembed.keras.layers.Embedding(2)

    def build(self, shape):
        pass

    def call(self, ids):
        return self.table(ids)


@pytest.mark.parametrize("key", ["ann", 7])
def test_a_layer_that_saw_no_ids_loads_weights(key, tmp_path):
    model, fresh = OfOne(), OfOne()
    model(tf.constant([key]))
    model.table.table.upsert(tf.constant([key]), [[1.0, 2.0]])
    model.save_weights(tmp_path / "model.weights.h5")
    fresh.build([None])
    fresh.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(fresh(tf.constant([key])), [[1.0, 2.0]])
