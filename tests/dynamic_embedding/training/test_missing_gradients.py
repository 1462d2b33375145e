"""Tables without a gradient in a step: their names are said.

Nothing stays untrained without a word: with every family of optimizers, for
tables, wrappers, shadows and dense variables, eagerly, in functions and in
graphs of TensorFlow 1.
"""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from tfembed import errors

tf_keras = pytest.importorskip("tf_keras")
MISSING = "Gradients do not exist for variables"
OPTIMIZERS = {
    "description": lambda: tfembed.SGD(1.0),
    "Keras 3": lambda: keras.optimizers.SGD(1.0),
    "Keras 3, its own rule": lambda: keras.optimizers.Lion(1.0),
    "tf_keras": lambda: tf_keras.optimizers.SGD(1.0),
    "legacy": lambda: tf_keras.optimizers.legacy.SGD(1.0),
    "tf.compat.v1": lambda: tf.compat.v1.train.GradientDescentOptimizer(1.0),
}
EACH = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def tables():
    return [
        de.Variable(dim=2, initializer=0.5, name=n) for n in ("used", "idle")
    ]


def gradient_of(table):
    with tf.GradientTape() as tape:
        rows = de.embedding_lookup(table, tf.constant([1], tf.int64), name="l")
        loss = tf.reduce_sum(rows)
    return tape.gradient(loss, table)


@EACH
@pytest.mark.parametrize("is_function", [False, True])
def test_a_table_without_a_gradient_is_named(make, is_function):
    used, idle = tables()
    optimizer = de.DynamicEmbeddingOptimizer(make())

    def step():
        optimizer.apply_gradients([(gradient_of(used), used), (None, idle)])

    with pytest.warns(UserWarning, match=rf"{MISSING} \['idle'\]"):
        (tf.function(step) if is_function else step)()

    np.testing.assert_array_equal(used.lookup([1]), [[-0.5, -0.5]])
    assert int(idle.size()) == 0


@EACH
def test_a_step_of_gradients_that_are_all_there_says_nothing(make):
    used, other = tables()
    optimizer = de.DynamicEmbeddingOptimizer(make())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        optimizer.apply_gradients(
            [(gradient_of(used), used), (gradient_of(other), other)]
        )


@EACH
def test_a_step_without_any_gradient_is_an_error(make):
    optimizer = de.DynamicEmbeddingOptimizer(make())
    with pytest.raises(errors.ArgumentError, match="No variable has a grad"):
        optimizer.apply_gradients([(None, table) for table in tables()])


def test_what_stands_for_a_table_is_named_with_the_table():
    used, idle = tables()
    shadow = de.shadow_ops.ShadowVariable(idle, name="shade")
    _, wrapper = de.embedding_lookup(
        idle, tf.constant([1], tf.int64), name="look", return_trainable=True
    )
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    pairs = [(gradient_of(used), used), (None, shadow), (None, wrapper)]
    names = "'shade of table idle', 'look of table idle'"
    with pytest.warns(UserWarning, match=names):
        optimizer.apply_gradients(pairs)


def test_weights_and_dense_variables_are_named_as_keras_names_them():
    used, _ = tables()
    layer = de.keras.layers.Embedding(2, name="users")
    dense = keras.layers.Dense(1, name="out")
    dense.build((None, 2))
    idle = [*layer.trainable_weights, *dense.trainable_weights]
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    pairs = [(gradient_of(used), used), *((None, v) for v in idle)]
    names = r"'users-parameter', 'out/kernel', 'out/bias'"
    with pytest.warns(UserWarning, match=names):
        optimizer.apply_gradients(pairs)


def test_minimize_names_a_table_that_the_loss_does_not_use():
    used, idle = tables()
    optimizer = de.DynamicEmbeddingOptimizer(tfembed.SGD(1.0))
    ids = tf.constant([1], tf.int64)

    def loss():
        de.embedding_lookup(idle, ids, name="i")
        return tf.reduce_sum(de.embedding_lookup(used, ids, name="u"))

    with pytest.warns(UserWarning, match=r"\['idle'\]"):
        optimizer.minimize(loss, [used, idle])
    with pytest.warns(UserWarning, match=r"\['idle'\]"):
        optimizer.minimize(loss)


def test_a_graph_names_tables_that_are_given_and_no_others():
    with tf.Graph().as_default():
        used, idle = tables()
        tf.compat.v1.get_variable("dense", [2])
        ids = tf.constant([1], tf.int64)
        loss = tf.reduce_sum(de.embedding_lookup(used, ids, name="l"))
        optimizer = de.DynamicEmbeddingOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0)
        )
        with pytest.warns(UserWarning, match=rf"{MISSING} \['idle'\]"):
            optimizer.minimize(loss, var_list=[used, idle])
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            optimizer.minimize(loss)
