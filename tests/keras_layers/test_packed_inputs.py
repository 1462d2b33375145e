"""Packed batches as the input of Keras' models."""

from __future__ import annotations

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tfembed
from embedding import steps
from keras_layers import small_model
from tfembed import errors
from tfembed.keras import packed_inputs
from tfembed.keras.layers import DistributedEmbedding


def test_a_packed_batch_comes_back_as_it_was():
    features, weights = steps.draw_step(np.random.default_rng(3)).inputs()
    packed = tfembed.pack_features(features, weights)
    back = packed_inputs.from_inputs(packed_inputs.as_inputs(packed), features)
    for field in ("paths", "kinds", "are_strings", "shapes", "weighted"):
        assert list(getattr(back, field)) == list(getattr(packed, field))
    for field in ("ids", "rows", "weights", "sizes"):
        np.testing.assert_array_equal(
            getattr(back, field), getattr(packed, field)
        )


def test_layers_take_both_forms_and_the_structure():
    layer = small_model.layer()
    batch = small_model.batch()
    expected = layer(batch, training=False)
    for packed in (layer.preprocess(batch), tfembed.pack_features(batch)):
        tf.nest.map_structure(
            np.testing.assert_array_equal,
            layer(packed, training=False),
            expected,
        )


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_weights_of_a_packed_batch_are_not_rounded(policy):
    layer = small_model.layer(dtype=policy)
    batch = small_model.batch()
    weights = {
        "user": None,
        "bag": batch["bag"].with_values(
            tf.fill(tf.shape(batch["bag"].values), 1.001)
        ),
        "last": None,
    }
    tf.nest.map_structure(
        np.testing.assert_array_equal,
        layer(layer.preprocess(batch, weights), training=False),
        layer(batch, weights, training=False),
    )


def _packed_data(layer, batch_size=16):
    data, labels = small_model.data()
    data["bag"] = tf.RaggedTensor.from_row_lengths(
        data["bag"].ravel(), tf.fill([len(labels)], 3)
    )
    dataset = tf.data.Dataset.from_tensor_slices((data, labels))
    dataset = dataset.ragged_batch(batch_size, drop_remainder=True)
    return dataset.map(lambda x, y: (layer.preprocess(x), y))


class Subclassed(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.tables = layer
        self.head = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        activations = self.tables(inputs, training=training)
        flat = [
            keras.ops.reshape(a, (-1, int(np.prod(a.shape[1:]))))
            for a in activations.values()
        ]
        return self.head(keras.ops.concatenate(flat, -1))


def _functional(layer, spec):
    inputs = {
        name: keras.Input(batch_shape=one.shape, dtype=one.dtype, name=name)
        for name, one in spec.items()
    }
    activations = layer(inputs)
    assert activations["last"].shape == (16, 3, 4)
    flat = [keras.layers.Flatten()(a) for a in activations.values()]
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(flat))
    return keras.Model(inputs, outputs)


@pytest.mark.parametrize("kind", ["subclassed", "functional"])
def test_a_model_learns_from_packed_batches_in_fit(kind, tmp_path):
    keras.utils.set_random_seed(1)
    layer = small_model.layer()
    dataset = _packed_data(layer)
    model = (
        Subclassed(layer)
        if kind == "subclassed"
        else _functional(layer, dataset.element_spec[0])
    )
    model.compile(keras.optimizers.Adam(0.02), "mse")
    losses = model.fit(dataset, epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.2 * losses[0]
    assert model.evaluate(dataset, verbose=0) < 0.2 * losses[0]
    assert model.predict(dataset, verbose=0).shape == (96, 1)
    if kind == "functional":
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(
            loaded.predict(dataset, verbose=0),
            model.predict(dataset, verbose=0),
        )


# The kind: a function that packs takes fewer forms of ids than the one that
# looks them up. `enqueue` was right; `call` refused columns of lists too.
def test_columns_and_lists_are_packed_as_they_are_looked_up():
    layer = DistributedEmbedding(
        {
            "user": tfembed.FeatureConfig(tfembed.TableConfig(None, 2, seed=1)),
            "bag": tfembed.FeatureConfig(tfembed.TableConfig(None, 2, seed=2)),
        },
        tfembed.SGD(0.1),
    )
    frame = pd.DataFrame({"user": [5, 6, 5], "bag": [[1], [2, 3], []]})
    batch = {"user": frame["user"], "bag": frame["bag"]}
    numbers = [[2.0], [1.0, 3.0], []]
    packed = layer.preprocess(batch, {"user": None, "bag": numbers})
    weights = {"user": None, "bag": tf.ragged.constant(numbers)}

    tf.nest.map_structure(
        np.testing.assert_array_equal,
        layer(packed, training=False),
        layer(batch, weights, training=False),
    )
    assert tfembed.pack_features(frame["user"]).ids.shape == [8]


def test_symbolic_inputs_are_not_packed_but_looked_up():
    layer = small_model.layer()
    inputs = {name: keras.Input((), dtype="int64") for name in ("user", "bag")}

    with pytest.raises(errors.UnsupportedError, match=r"`layer\(inputs\)`"):
        layer.preprocess(inputs)
    assert layer({"user": inputs["user"]})["user"].shape == (None, 2)


def test_string_ids_are_taken():
    words = tfembed.TableConfig(
        None, 2, name="words", key_dtype=tf.string, seed=3
    )
    layer = DistributedEmbedding(
        {"word": tfembed.FeatureConfig(words)}, tfembed.SGD(0.1)
    )
    batch = {"word": tf.constant(["a", "b", "a"])}
    np.testing.assert_array_equal(
        layer(layer.preprocess(batch), training=False)["word"],
        layer(batch, training=False)["word"],
    )


def test_a_batch_of_other_features_is_refused():
    packed = packed_inputs.as_inputs(
        tfembed.pack_features({"likes": tf.constant([1])})
    )
    with pytest.raises(errors.ArgumentError, match="other features.*'bag'"):
        small_model.layer()(packed, training=False)
