"""Layers over tables: loss scales, jit_compile, and summaries of models."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from keras_layers import small_model
from tfembed.keras.layers import DistributedEmbedding, Embedding


@pytest.fixture(autouse=True)
def _policy_of_before():
    yield
    keras.config.set_dtype_policy("float32")


def zeros(shape, dtype):
    return tf.zeros(shape, dtype)


def rows_after_fit(policy, optimizer, **options):
    keras.config.set_dtype_policy(policy)
    table = tfembed.TableConfig(4, 2, zeros, name="users")
    layer = DistributedEmbedding(tfembed.FeatureConfig(table), tfembed.SGD(0.5))
    inputs = keras.Input((), dtype="int64")
    model = keras.Model(inputs, layer(inputs))
    model.compile(optimizer, "mse", **options)
    model.fit(np.arange(4), np.ones([4, 2]), batch_size=4, verbose=0)
    return layer.get_embedding_tables()["users"].numpy()


@pytest.mark.parametrize(
    ("policy", "optimizer", "options"),
    [
        ("mixed_float16", lambda: "sgd", {}),
        ("mixed_float16", lambda: "sgd", {"run_eagerly": True}),
        ("mixed_float16", lambda: "sgd", {"auto_scale_loss": False}),
        ("float32", lambda: keras.optimizers.SGD(loss_scale_factor=64.0), {}),
        (
            "float32",
            lambda: de.DynamicEmbeddingOptimizer(
                keras.optimizers.SGD(loss_scale_factor=64.0)
            ),
            {},
        ),
        (
            "float32",
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
            {},
        ),
    ],
)
def test_the_scale_of_the_models_loss_is_taken_back_in_fit(
    policy, optimizer, options
):
    found = rows_after_fit(policy, optimizer(), **options)

    # The gradient of the mean of 8 squares of 1, at a rate of 0.5.
    np.testing.assert_allclose(found, np.full([4, 2], 0.125), 1e-3)


def scaled_sgd():
    return keras.optimizers.SGD(loss_scale_factor=64.0)


@pytest.mark.parametrize(
    "optimizer",
    [scaled_sgd, lambda: de.DynamicEmbeddingOptimizer(scaled_sgd())],
    ids=["keras", "dynamic_embedding"],
)
def test_an_embedding_with_its_own_optimizer_takes_the_scale_back(optimizer):
    layer = Embedding(
        2, optimizer=tfembed.SGD(0.5), embeddings_initializer="zeros"
    )
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile(optimizer(), "mse", run_eagerly=True)

    model.fit(np.arange(4), np.ones([4, 2]), batch_size=4, verbose=0)

    np.testing.assert_allclose(
        model.predict(np.arange(4), verbose=0), np.full([4, 2], 0.125), 1e-6
    )


def one_of_each():
    return [
        DistributedEmbedding(
            tfembed.FeatureConfig(tfembed.TableConfig(9, 2, name="users"))
        ),
        Embedding(2),
    ]


@pytest.mark.parametrize("layer", one_of_each(), ids=lambda x: type(x).__name__)
def test_jit_compile_says_why_the_step_is_not_compiled(layer):
    inputs = keras.Input((), dtype="int64")
    model = keras.Model(inputs, layer(inputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras' own, which gives no reason.
        model.compile("sgd", "mse", jit_compile=True)

    with pytest.warns(UserWarning, match=r"host memory.*@tf\.function"):
        model.fit(np.arange(4), np.ones([4, 2]), verbose=0)


def test_the_dense_part_is_compiled_as_the_warning_says(recwarn):
    class Compiled(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        @tf.function(jit_compile=True)
        def call(self, rows):
            assert tf.executing_eagerly() is False
            return self.dense(rows)

    inputs = keras.Input((), dtype="int64")
    layer = Compiled()
    layer.dense.build((None, 2))
    model = keras.Model(inputs, layer(Embedding(2)(inputs)))
    model.compile("sgd", "mse")
    before = layer.dense.kernel.numpy()

    model.fit(np.arange(4), np.ones([4, 1]), verbose=0)

    assert (layer.dense.kernel.numpy() != before).any()
    assert not [w for w in recwarn if "compiled" in str(w.message)]


def test_a_summary_shows_rows_width_and_bytes(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    model = small_model.model(small_model.layer())
    lines = []
    model.summary(line_length=150, print_fn=lines.append)
    text = "\n".join(map(str, lines))
    assert "items: 16 x 4 (256 B)" in text
    assert "users: 16 x 2 (128 B)" in text


def test_a_summary_shows_tables_before_they_are_built(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    layers = [
        Embedding(256, name="own"),
        de.keras.layers.Embedding(64, name="dynamic"),
        keras.layers.Dense(1),
    ]
    lines = []

    keras.Sequential(layers).summary(print_fn=lines.append)

    text = "\n".join(map(str, lines))
    assert "0 x 256 (0 B)" in text
    assert "0 x 64 (0 B)" in text
    assert text.count("unbuilt") == 1


def test_a_summary_shows_the_rows_that_a_table_has_grown(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    model = keras.Sequential(
        [keras.Input((), dtype="int64"), Embedding(256), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    model.fit(np.arange(1500), np.ones([1500, 1]), batch_size=500, verbose=0)

    lines = []
    model.summary(line_length=150, print_fn=lines.append)

    assert "1,500 x 256 (1.5 MB)" in "\n".join(map(str, lines))
    assert model.layers[0].count_params() == 1500 * 256
