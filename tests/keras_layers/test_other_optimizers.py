"""Tables whose optimizer is followed by another one in the same process.

The kind: what trains a layer changes, and the layer stays. Tried for a second
model, two models in turn, loops, functions, an optimizer that is set, and
`dynamic_embedding`'s layer; other layers' tables keep their optimizers.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from tfembed import errors
from tfembed.keras.layers import DistributedEmbedding

IDS = np.array([1, 2, 3])
ZEROS = np.zeros([3, 2], np.float32)
OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.1),
    "nadam": lambda: keras.optimizers.Nadam(0.1),
    "sgd": lambda: keras.optimizers.SGD(0.5),
}


def embedding(**options):
    return tfembed.keras.layers.Embedding(
        2, key_dtype="int64", embeddings_initializer="ones", **options
    )


def plain():
    return embedding(), lambda optimizer: optimizer


def wrapped():
    ones = keras.initializers.Ones()
    layer = de.keras.layers.Embedding(2, initializer=ones, name="rows")
    return layer, de.DynamicEmbeddingOptimizer


def model_of(layer, optimizer, **options):
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile(optimizer, "mse", **options)
    return model


def fit(model):
    model.fit(IDS, ZEROS, batch_size=3, verbose=0)


def step(layer, optimizer):
    """Takes a step of a loop, by the gradient of the rows' squares."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(layer(IDS) ** 2)
    weights = layer.trainable_variables
    optimizer.apply(tape.gradient(loss, weights), weights)


def table_of(layer):
    return (getattr(layer, "table", None) or layer.params).table


def rows(layer):
    return table_of(layer).lookup(IDS)[0].numpy()


def after_a_step(name, before):
    """The rows after the first step of a new optimizer, by Keras alone."""
    layer = keras.layers.Embedding(4, 2)
    layer.build()
    layer.set_weights([np.concatenate([np.zeros([1, 2]), before])])
    fit(model_of(layer, OPTIMIZERS[name](), run_eagerly=True))
    return layer.get_weights()[0][1:]


@pytest.mark.parametrize(
    ("made", "first", "second"),
    [
        (plain, "adam", "sgd"),
        (plain, "sgd", "nadam"),
        (plain, "adam", "nadam"),  # Slots of the same widths.
        (wrapped, "adam", "nadam"),
    ],
)
def test_models_of_a_layer_train_it_in_turn_by_their_optimizers(
    made, first, second
):
    layer, wrap = made()
    one, other = (
        model_of(layer, wrap(OPTIMIZERS[name]())) for name in (first, second)
    )
    fit(one)
    before = rows(layer)

    with pytest.warns(UserWarning) as said:
        fit(other)
        wanted = after_a_step(second, before)
        np.testing.assert_allclose(rows(layer), wanted, rtol=1e-5)

        one.optimizer.iterations.assign(0)  # As the slots do.
        fit(one)
        again = after_a_step(first, wanted)
        np.testing.assert_allclose(rows(layer), again, rtol=1e-5)

    texts = [str(one.message) for one in said]
    lost = [text for text in texts if "3 rows stay; the slots" in text]
    assert len(lost) == 2 - [first, second].count("sgd")  # It has none.


def test_a_layer_of_two_models_is_trained_in_turn_in_eager_mode():
    layer, _ = plain()
    one = model_of(layer, "adam", run_eagerly=True)
    other = model_of(layer, keras.optimizers.SGD(1.5), run_eagerly=True)

    fit(one)
    before = rows(layer)
    with pytest.warns(UserWarning, match="3 rows stay"):
        fit(other)

    np.testing.assert_allclose(rows(layer), before / 2, rtol=1e-5)
    fit(one)
    assert table_of(layer).slot_names == ("momenta", "velocities")


def test_a_loop_goes_on_with_another_optimizer_but_not_to_and_fro():
    layer, _ = plain()
    adam, sgd = keras.optimizers.Adam(0.1), keras.optimizers.SGD(1.5)
    step(layer, adam)
    before = rows(layer)

    with pytest.warns(UserWarning, match="3 rows stay"):
        step(layer, sgd)

    np.testing.assert_allclose(rows(layer), before / 2, rtol=1e-5)
    with pytest.raises(errors.ArgumentError, match="as a second one"):
        step(layer, adam)
    np.testing.assert_allclose(rows(layer), before / 2, rtol=1e-5)


def test_two_optimizers_of_one_function_are_refused():
    layer, _ = plain()
    adam, sgd = keras.optimizers.Adam(0.1), keras.optimizers.SGD(1.5)

    @tf.function(autograph=False)
    def both():
        step(layer, adam)
        step(layer, sgd)

    with pytest.raises(errors.ArgumentError, match="as a second one"):
        both()


class _OwnStep(keras.optimizers.SGD):
    """Steps by a method, and a closure, that Keras' optimizers do not have."""

    def move(self, gradient, weight):
        def take():
            assert self.learning_rate == 1.5
            weight.assign(gradient)

        return take()


def test_an_optimizer_steps_by_methods_of_its_own():
    layer, _ = plain()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(layer(IDS) ** 2)
    (weight,) = layer.trainable_variables

    _OwnStep(1.5).move(tape.gradient(loss, weight), weight)

    np.testing.assert_allclose(rows(layer), np.full([3, 2], 0.5), rtol=1e-5)


def test_an_optimizer_that_is_set_trains_the_table_of_all_its_layers():
    layer = embedding(optimizer="adam")
    sharer = tfembed.keras.layers.Embedding(table=layer)
    model = model_of(sharer, "sgd")
    fit(model)
    before = rows(layer)

    layer.optimizer = tfembed.SGD(1.5)
    with pytest.warns(UserWarning, match="3 rows stay"):
        fit(model)

    np.testing.assert_allclose(rows(layer), before / 2, rtol=1e-5)
    assert sharer.optimizer is layer.optimizer
    assert layer.get_config()["optimizer"]["described"] is not None

    layer.optimizer = None  # That of the model.
    model.compile(keras.optimizers.SGD(0.0), "mse")
    fit(model)
    np.testing.assert_allclose(rows(layer), before / 2, rtol=1e-5)


def test_the_tables_of_a_distributed_embedding_keep_their_optimizer(recwarn):
    table = tfembed.TableConfig(None, 2, 1.0, name="users")
    layer = DistributedEmbedding(
        tfembed.FeatureConfig(table), tfembed.Adagrad(0.1)
    )
    for optimizer in ("adam", "sgd"):
        model = model_of(layer, optimizer)
        fit(model)

    (hash_table,) = layer.get_embedding_tables().values()
    slots = hash_table.export_slots()[1]["accumulators"].numpy()
    assert (slots > 0.1).all()
    assert not [one for one in recwarn if "rows stay" in str(one.message)]
