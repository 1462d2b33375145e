"""Optimizers of tf_keras, where it is installed, beside dense variables."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de

tf_keras = pytest.importorskip("tf_keras")

OPTIMIZERS = {
    "SGD": {"learning_rate": 0.1},
    "SGD with momentum": {"learning_rate": 0.1, "momentum": 0.9},
    "Adagrad": {"learning_rate": 0.1},
    "Adam": {"learning_rate": 0.1},
    "AdamW": {"learning_rate": 0.1, "weight_decay": 0.01},
    "Ftrl": {"learning_rate": 0.1},
    "RMSprop": {"learning_rate": 0.1},
    "Adadelta": {"learning_rate": 0.5},
    "Adamax": {"learning_rate": 0.1},
    "Nadam": {"learning_rate": 0.1},
    "Lion": {"learning_rate": 0.1},
}
KEYS = tf.constant([7, -1, 10**12], tf.int64)


def made(name):
    return getattr(tf_keras.optimizers, name.split()[0])(**OPTIMIZERS[name])


def gradients():
    random = np.random.default_rng(3)
    return [
        tf.constant(random.normal(size=(3, 4)), tf.float32) for _ in range(5)
    ]


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_move_as_dense_ones(name, in_function):
    table = de.Variable(dim=4, name="rows", initializer=1.0)
    optimizer = de.DynamicEmbeddingOptimizer(made(name))
    dense = tf.Variable(tf.ones([3, 4]))
    reference = made(name)

    def step(gradient):
        optimizer.apply_gradients([(tf.IndexedSlices(gradient, KEYS), table)])

    step = tf.function(step) if in_function else step
    for gradient in gradients():
        step(gradient)
        reference.apply_gradients([(gradient, dense)])

    np.testing.assert_allclose(table.lookup(KEYS), dense, 1e-5, 1e-6)
    assert int(optimizer.iterations) == 5


def test_a_model_of_tf_keras_trains_its_dense_variables_beside_it():
    table = de.Variable(dim=4, name="rows", initializer=1.0)
    layer = tf_keras.layers.Dense(1)
    layer.build([None, 4])
    optimizer = de.DynamicEmbeddingOptimizer(made("Adam"))
    before = layer.kernel.numpy()

    with tf.GradientTape() as tape:
        rows = de.embedding_lookup(table, KEYS, name="rows")
        loss = tf.reduce_sum(layer(rows) ** 2)
    variables = [table, *layer.trainable_variables]
    optimizer.apply_gradients(
        zip(tape.gradient(loss, variables), variables, strict=True)
    )

    assert int(table.size()) == 3
    assert (layer.kernel.numpy() != before).all()


# Methods that a wrapper does not have go to the wrapped optimizer, which knows
# no tables. Looked at too: the wrapper of Keras 3's, which has `build`.
def test_an_optimizer_is_built_with_tables_before_the_first_step():
    table = de.Variable(dim=2, name="built", initializer=1.0)
    dense = tf.Variable([1.0, 2.0])
    optimizer = de.DynamicEmbeddingOptimizer(tf_keras.optimizers.Adam(0.1))

    optimizer.build([table, dense])

    assert table.table.optimizer is not None
    sizes = [v.shape.num_elements() for v in optimizer.variables()]
    assert sizes.count(2) == 2
