"""Features and tables without a gradient in a step: their names are said.

Nothing stays untrained without a word: in TPUEmbedding, in V0 under each engine
and kind of optimizer, and in `DistributedEmbedding`.
"""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from embedding import counting
from tfembed import errors

OPTIMIZERS = {
    "Keras 3": lambda: keras.optimizers.SGD(1.0),
    "tf.compat.v1": lambda: tf.compat.v1.train.GradientDescentOptimizer(1.0),
    "tfembed": lambda: de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0)),
}


def table(name):
    return tfembed.TableConfig(
        8, 2, initializer=tf.constant_initializer(0.5), name=name
    )


def features():
    return {n: tfembed.FeatureConfig(table(n)) for n in ("used", "idle")}


@pytest.mark.parametrize("is_function", [False, True])
def test_a_feature_without_a_gradient_is_named(is_function):
    embedding = counting.embedding()

    def step():
        embedding.enqueue({"clicks": tf.constant([1])})
        embedding.dequeue()
        embedding.apply_gradients({"clicks": None})

    with pytest.warns(
        UserWarning, match="No gradient passed for feature.*click"
    ):
        (tf.function(step) if is_function else step)()


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_table_of_v0_without_a_gradient_is_named_once(make):
    embedding = tfembed.TPUEmbeddingV0(features(), None)
    idle, used = embedding.trainable_variables  # In the features' order.
    ids = tf.constant([[1]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(embedding({"used": ids, "idle": ids})["used"])
    pairs = [(tape.gradient(loss, used), used), (None, idle)]

    with pytest.warns(UserWarning, match=r"variables \['idle:0'\]") as said:
        embedding.apply_optimizer(make(), pairs)

    assert len([w for w in said if "Gradients" in str(w.message)]) == 1
    np.testing.assert_array_equal(used[1], [-0.5, -0.5])
    np.testing.assert_array_equal(idle[1], [0.5, 0.5])


def test_a_step_of_v0_without_any_gradient_is_an_error():
    embedding = tfembed.TPUEmbeddingV0(features(), None)
    pairs = [(None, one) for one in embedding.trainable_variables]
    with pytest.raises(errors.ArgumentError, match="No variable has a grad"):
        embedding.apply_optimizer(keras.optimizers.SGD(1.0), pairs)


def test_keras_is_told_of_a_v0_that_its_step_does_not_train():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = tfembed.TPUEmbeddingV0(features(), None)
            self.out = keras.layers.Dense(1)

        def call(self, ids):
            found = self.embedding({"used": ids, "idle": ids})
            return self.out(found["used"][:, 0])

    model = Model()
    model.compile("sgd", loss="mse")
    with pytest.warns(UserWarning, match="Table 'used:0' is not trained"):
        model.fit(np.ones([4, 1], np.int64), np.ones([4, 1]), verbose=0)


def distributed_model(use):
    layer = tfembed.keras.layers.DistributedEmbedding(
        features(), tfembed.SGD(1.0), name="all"
    )
    inputs = {n: keras.Input((), dtype="int64", name=n) for n in features()}
    out = keras.layers.Dense(1)(use(layer(inputs)))
    model = keras.Model(inputs, out)
    return model, layer.get_embedding_tables()


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_table_of_a_layer_that_the_loss_does_not_use_is_named(run_eagerly):
    model, tables = distributed_model(lambda found: found["used"])
    model.compile("sgd", loss="mse", run_eagerly=run_eagerly)
    ids = dict.fromkeys(features(), np.arange(4))

    with pytest.warns(UserWarning, match=r"tables \['idle'\]"):
        model.fit(ids, np.ones([4, 1]), verbose=0)

    assert (tables["used"].numpy()[:4] != 0.5).all()
    assert (tables["idle"].numpy() == 0.5).all()


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_layer_whose_tables_all_train_says_nothing(run_eagerly):
    model, _ = distributed_model(lambda found: found["used"] + found["idle"])
    model.compile("sgd", loss="mse", run_eagerly=run_eagerly)
    ids = dict.fromkeys(features(), np.arange(4))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(rain|radient)")
        model.fit(ids, np.ones([4, 1]), epochs=2, verbose=0)
        model.evaluate(ids, np.ones([4, 1]), verbose=0)
        model.predict(ids, verbose=0)


def test_a_layer_that_reaches_no_loss_is_named_by_keras():
    layer = tfembed.keras.layers.DistributedEmbedding(
        features(), tfembed.SGD(1.0), name="all"
    )
    inputs = {n: keras.Input((), dtype="int64", name=n) for n in features()}
    found = layer(inputs)
    dense = keras.layers.Dense(1)(keras.ops.ones_like(found["used"]))
    model = keras.Model(inputs, dense)
    model.compile("sgd", loss="mse")
    ids = dict.fromkeys(features(), np.arange(4))
    with pytest.warns(UserWarning, match="Gradients do not exist.*all/trap"):
        model.fit(ids, np.ones([4, 1]), verbose=0)
