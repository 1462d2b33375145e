"""Layers that users derive: their `call` gets what was passed.

No input is converted before a user's `call` sees it: in all layers over tables, with one tensor and several, floats, keywords, in models of
all forms, in tf_keras and in `DistributedEmbedding`.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from tfembed import errors
from tfembed.dynamic_embedding.keras import layers

BINS = 1000
WORDS = np.array([["a", "b"], ["c", "a"]])
KEYS = tf.strings.to_hash_bucket_fast(WORDS, BINS)


def hashed(words):
    return tf.strings.to_hash_bucket_fast(words, BINS)


@keras.saving.register_keras_serializable("users")
def by_two(ids):
    return ids % 2


@keras.saving.register_keras_serializable("users")
class Hashed(layers.Embedding):
    def call(self, words):
        return super().call(hashed(words))


@keras.saving.register_keras_serializable("users")
class HashedBags(layers.SquashedEmbedding):
    def call(self, words):
        return super().call(hashed(words))


@keras.saving.register_keras_serializable("users")
class HashedFields(layers.FieldWiseEmbedding):
    def call(self, words):
        return super().call(hashed(words))


@keras.saving.register_keras_serializable("users")
class Several(layers.Embedding):
    def call(self, inputs, scale=None):
        rows = super().call(hashed(inputs["words"])) + super().call(
            inputs["ids"]
        )
        return rows if scale is None else rows * scale[..., tf.newaxis]


@keras.saving.register_keras_serializable("users")
class OfFloats(layers.Embedding):
    def call(self, numbers):
        buckets = tf.cast(tf.floor(numbers * 10), tf.int64)
        return tf.reduce_sum(super().call(buckets), 1)


class Sees(layers.Embedding):
    def call(self, ids):
        self.seen = ids
        return super().call(ids)


OF_WORDS = {
    "Embedding": lambda: Hashed(4, name="words"),
    "SquashedEmbedding": lambda: HashedBags(4, name="words"),
    "FieldWiseEmbedding": lambda: HashedFields(4, 2, by_two, name="words"),
}
PLAIN = {
    "Embedding": lambda: layers.Embedding(4, name="words"),
    "SquashedEmbedding": lambda: layers.SquashedEmbedding(4, name="words"),
    "FieldWiseEmbedding": lambda: layers.FieldWiseEmbedding(
        4, 2, by_two, name="words"
    ),
}
EACH = pytest.mark.parametrize("kind", OF_WORDS)


def with_rows(layer):
    rows = np.arange(4 * BINS, dtype=np.float32).reshape(BINS, 4)
    layer.params.upsert(np.arange(BINS), rows)
    return layer


@EACH
@pytest.mark.parametrize("convert", [tf.constant, np.asarray, tf.RaggedTensor])
def test_a_layer_that_hashes_gives_the_rows_of_what_it_hashes(kind, convert):
    words, keys = WORDS, KEYS
    if convert is tf.RaggedTensor:
        words = tf.RaggedTensor.from_tensor(WORDS)
        words = words.with_flat_values(tf.identity(words.flat_values))
        keys = tf.RaggedTensor.from_tensor(KEYS)
    else:
        words = convert(words)
    found = with_rows(OF_WORDS[kind]())(words)
    expected = with_rows(PLAIN[kind]())(keys)
    for one, other in zip(
        tf.nest.flatten(found, expand_composites=True),
        tf.nest.flatten(expected, expand_composites=True),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def model_of(layer, inputs):
    rows = keras.layers.Flatten()(layer(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(rows))
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))
    model.compile(optimizer, loss="mse")
    return model


def check_saved(model, inputs, folder):
    model.save(folder / "m.keras")
    loaded = keras.saving.load_model(folder / "m.keras")
    expected = model.predict(inputs, verbose=0)
    np.testing.assert_array_equal(loaded.predict(inputs, verbose=0), expected)
    model.export(folder / "served", verbose=False)
    served = tf.saved_model.load(folder / "served")
    np.testing.assert_allclose(served.serve(inputs), expected, rtol=1e-5)


@EACH
def test_a_model_of_strings_trains_and_is_saved(kind, tmp_path):
    layer = OF_WORDS[kind]()
    model = model_of(layer, keras.Input((2,), dtype="string"))
    model.fit(tf.constant(WORDS), np.ones([2, 1]), verbose=0)
    assert int(layer.params.size()) == 3
    check_saved(model, tf.constant(WORDS), tmp_path)


def test_a_layer_of_several_inputs_trains_and_is_saved(tmp_path):
    layer = Several(4, name="several")
    inputs = {
        "words": keras.Input((2,), dtype="string", name="words"),
        "ids": keras.Input((2,), dtype="int64", name="ids"),
    }
    model = model_of(layer, inputs)
    batch = {"words": tf.constant(WORDS), "ids": tf.constant([[1, 2], [3, 4]])}
    batch["ids"] = tf.cast(batch["ids"], tf.int64)
    model.fit(batch, np.ones([2, 1]), verbose=0)
    assert int(layer.params.size()) == len({*KEYS.numpy().ravel(), 1, 2, 3, 4})
    check_saved(model, batch, tmp_path)


def test_a_layer_takes_keywords_beside_its_inputs():
    layer = Several(4, initializer=0.5, name="several")
    rows = layer(
        {"words": tf.constant(WORDS), "ids": KEYS},
        scale=tf.constant([[1.0, 2.0], [3.0, 4.0]]),
    )
    np.testing.assert_array_equal(rows[..., 0], [[1, 2], [3, 4]])


def test_a_layer_that_makes_ids_of_floats_trains_and_is_saved(tmp_path):
    layer = OfFloats(4, name="floats")
    model = model_of(layer, keras.Input((2,), dtype="float32"))
    numbers = np.array([[0.15, 0.25], [0.35, 0.15]], np.float32)
    assert layer(numbers).shape == (2, 4)
    model.fit(numbers, np.ones([2, 1]), verbose=0)
    assert int(layer.params.size()) == 3
    check_saved(model, numbers, tmp_path)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.uint8])
def test_a_call_gets_the_dtype_that_was_passed(dtype):
    layer = Sees(4, name="sees")
    layer(tf.constant([1, 2], dtype))
    assert layer.seen.dtype == dtype


def test_a_symbolic_output_is_what_call_gives():
    assert OfFloats(4)(keras.Input((7,))).shape == (None, 4)


def test_ids_that_are_no_keys_are_refused_where_call_is_ours():
    with pytest.raises(
        errors.UnsupportedError, match="must be int64; got float32"
    ):
        layers.Embedding(4, name="users")(keras.Input((2,)))
    with pytest.raises(errors.DtypeError, match="must be int64; got string"):
        layers.Embedding(4, name="users")(tf.constant(WORDS))


def test_a_model_of_tf_keras_trains_a_layer_that_hashes():
    tf_keras = pytest.importorskip("tf_keras")

    class Model(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.words = HashedBags(4, name="words")
            self.out = tf_keras.layers.Dense(1)

        def call(self, words):
            return self.out(self.words(words))

    model = Model()
    model.compile(
        de.DynamicEmbeddingOptimizer(tf_keras.optimizers.SGD(0.1)), loss="mse"
    )
    model.fit(tf.constant(WORDS), np.ones([2, 1]), verbose=0)
    assert int(model.words.params.size()) == 3


@keras.saving.register_keras_serializable("users")
class HashedAll(tfembed.keras.layers.DistributedEmbedding):
    def call(self, words, **options):
        ids = tf.nest.map_structure(hashed, words)
        return super().call(ids, **options)["word"]


def test_a_distributed_embedding_that_hashes_trains_and_is_saved(tmp_path):
    words = tfembed.TableConfig(BINS, 4, name="words")
    layer = HashedAll({"word": tfembed.FeatureConfig(words)}, tfembed.SGD(0.1))
    inputs = {"word": keras.Input((), dtype="string", name="word")}
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile("sgd", loss="mse")
    before = layer.get_embedding_tables()["words"].numpy()

    model.fit({"word": tf.constant(WORDS[0])}, np.ones([2, 1]), verbose=0)

    moved = (layer.get_embedding_tables()["words"].numpy() != before).any(1)
    assert sorted(np.flatnonzero(moved)) == sorted(KEYS[0].numpy())
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(
        loaded.predict({"word": tf.constant(WORDS[0])}, verbose=0),
        model.predict({"word": tf.constant(WORDS[0])}, verbose=0),
    )
