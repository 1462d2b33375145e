"""DistributedEmbedding: optimizers of Keras, and their names."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from keras_layers import small_model
from tfembed import errors
from tfembed.keras.layers import DistributedEmbedding

ONES = tf.compat.v1.ones_initializer()


def feature(optimizer=None, vocabulary=8):
    initializer = ONES if vocabulary else 1.0
    table = tfembed.TableConfig(
        vocabulary, 2, initializer, optimizer=optimizer, name="users"
    )
    return tfembed.FeatureConfig(table)


def trained(layer, steps=3):
    """The rows after steps whose gradient is twice the row of id 1."""
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([1])) ** 2)
        small_model.apply(tape, loss, layer)
    return layer(tf.constant([1]), training=False)[0].numpy()


def as_keras(optimizer, steps=3):
    row = keras.Variable(np.ones(2, np.float32))
    for _ in range(steps):
        optimizer.apply([2 * row.value], [row])
    return row.numpy()


OPTIMIZERS = [
    lambda: "sgd",
    lambda: keras.optimizers.Adagrad(0.1, epsilon=1e-3),
    lambda: keras.optimizers.Adam(0.1, beta_1=0.5, clipvalue=1.0),
    lambda: keras.optimizers.Ftrl(0.1),
    lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.2, 1, 0.5)
    ),
]


@pytest.mark.parametrize("vocabulary", [8, None])
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_table_moves_as_keras_moves_a_weight(make, vocabulary):
    layer = DistributedEmbedding(feature(vocabulary=vocabulary), make())

    found = trained(layer)

    wanted = as_keras(keras.optimizers.get(make()))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert int(layer.optimizers[0].iterations) == 3


def test_a_table_of_its_own_optimizer_and_the_default_is_adam():
    layer = DistributedEmbedding({"a": feature(keras.optimizers.SGD(0.5))})
    other = DistributedEmbedding(feature())

    assert trained(other)[0] == as_keras(keras.optimizers.Adam())[0]
    (config,) = layer.embedding.embedding_tables
    assert type(config.optimizer) is tfembed.SGD


def test_none_is_for_tables_that_are_never_trained():
    with pytest.raises(errors.StateError, match="no optimizer"):
        trained(DistributedEmbedding(feature(), None))


def test_a_learning_rate_that_is_set_reaches_the_table():
    layer = DistributedEmbedding(feature(), keras.optimizers.SGD(0.1))
    before = trained(layer, 1)
    layer.optimizers[0].learning_rate = 0.0

    assert (trained(layer, 1) == before).all()


@pytest.mark.parametrize(
    ("optimizer", "error", "words"),
    [
        ("adagrd", errors.ArgumentError, "'adagrad'"),
        ("rmsprop", errors.UnsupportedError, "Adagrad, Adam, Ftrl"),
        (
            keras.optimizers.Adam(clipnorm=1.0),
            errors.UnsupportedError,
            "clipnorm",
        ),
        (
            keras.optimizers.SGD(momentum=0.9),
            errors.UnsupportedError,
            r"SGD\(momentum=0.9\) has no rule.*Leave momentum out; or.*\.Momentum",
        ),
        (
            keras.optimizers.Adam(weight_decay=0.01, amsgrad=True),
            errors.UnsupportedError,
            r"weight_decay=0.01, amsgrad=True.*tfembed.Adam\(..., weight_decay_f",
        ),
        (
            keras.optimizers.Ftrl(initial_accumulator_value=0.0),
            errors.UnsupportedError,
            r"Leave initial_accumulator_value out",
        ),
    ],
)
def test_what_has_no_rule_is_told_what_has(optimizer, error, words):
    with pytest.raises(error, match=words):
        DistributedEmbedding(feature(), optimizer)


def test_training_goes_on_in_a_loaded_model(tmp_path):
    adam = keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    )
    model = small_model.model(DistributedEmbedding(small_model.configs(), adam))
    model.compile("sgd", "mse")
    data, labels = small_model.data()
    model.fit(data, labels, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")

    loaded = keras.saving.load_model(tmp_path / "model.keras")

    layers = [
        next(x for x in m.layers if isinstance(x, DistributedEmbedding))
        for m in (model, loaded)
    ]
    assert len(layers[1].optimizers) == 1
    for one in (model, loaded):
        one.fit(data, labels, shuffle=False, verbose=0)
    wanted, found = map(small_model.rows, layers)
    for name, rows in wanted.items():
        np.testing.assert_array_equal(found[name], rows)
