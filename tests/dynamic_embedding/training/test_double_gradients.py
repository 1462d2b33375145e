"""A gradient that comes twice in one step is refused; other ones are summed."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import errors

IN_FUNCTION = pytest.mark.parametrize("in_function", [False, True])


def ids(*values):
    return tf.constant(values, tf.int64)


def setup():
    v = de.Variable(dim=1, name="rows")
    shadow = de.shadow_ops.ShadowVariable(v, "shadow")
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    return v, shadow, optimizer


def row(v, key):
    return v.lookup(ids(key)).numpy().item()


@IN_FUNCTION
@pytest.mark.parametrize("order", [1, -1])
def test_a_variable_and_its_shadow_are_refused(in_function, order):
    v, shadow, optimizer = setup()
    sources = [v, shadow][::order]

    def step():
        with tf.GradientTape() as tape:
            rows = de.shadow_ops.embedding_lookup(shadow, ids(5, 6))
            loss = tf.reduce_sum(rows)
        gradients = tape.gradient(loss, sources)
        optimizer.apply_gradients(zip(gradients, sources, strict=True))

    with pytest.raises(errors.ArgumentError, match="through 'shadow' too"):
        (tf.function(step) if in_function else step)()

    assert int(v.size()) == 0


@IN_FUNCTION
def test_the_same_source_twice_is_refused(in_function):
    v, shadow, optimizer = setup()

    def step(source):
        def loss():
            rows = de.shadow_ops.embedding_lookup(shadow, ids(5, 6))
            return tf.reduce_sum(rows)

        optimizer.minimize(loss, [source, source])

    step = tf.function(step) if in_function else step
    for source in (v, shadow):
        with pytest.raises(errors.ArgumentError, match="'rows' comes twice"):
            step(source)
    assert int(v.size()) == 0


def test_a_layer_s_weight_and_its_table_are_refused():
    layer = de.keras.layers.Embedding(1, name="layer")
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))

    def loss():
        return tf.reduce_sum(layer(ids(5)))

    with pytest.raises(errors.ArgumentError, match="comes twice"):
        optimizer.minimize(loss, [*layer.trainable_weights, layer.params])

    assert int(layer.params.size()) == 0


def test_lookups_of_one_variable_are_summed():
    v, _, optimizer = setup()
    with tf.GradientTape() as tape:
        each = [
            de.embedding_lookup(v, ids(*keys), name=name, return_trainable=True)
            for name, keys in (("one", [5, 6]), ("two", [6, 6]))
        ]
        loss = tf.add_n([tf.reduce_sum(rows) for rows, _ in each])
    sources = [wrapper for _, wrapper in each]
    gradients = tape.gradient(loss, sources)

    optimizer.apply_gradients(zip(gradients, sources, strict=True))

    assert [row(v, 5), row(v, 6)] == [-1.0, -3.0]


def test_gradients_of_several_batches_are_summed():
    v, _, optimizer = setup()
    gradients = []
    for keys in ([5, 6], [6, 7]):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(de.embedding_lookup(v, ids(*keys), name="x"))
        gradients.append(tape.gradient(loss, v))

    optimizer.apply_gradients([(gradient, v) for gradient in gradients])

    np.testing.assert_array_equal(
        v.lookup(ids(5, 6, 7)), [[-1.0], [-2.0], [-1.0]]
    )
