"""Keras' optimizers on tables beside the same on a dense variable."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import errors

KERAS = tf.keras.optimizers
MAKERS = {
    "SGD": lambda rate: KERAS.SGD(rate),
    "Adagrad": lambda rate: KERAS.Adagrad(rate, 0.2, epsilon=1e-2),
    "Adam": lambda rate: KERAS.Adam(rate, 0.8, 0.95, epsilon=1e-3),
    "Ftrl": lambda rate: KERAS.Ftrl(
        rate,
        initial_accumulator_value=0.2,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
        beta=0.1,
    ),
}
NAMES = pytest.mark.parametrize("name", MAKERS)
KEYS, DIM, STEPS = 4, 3, 10


def rates(step):
    return 0.3 / (1 + step)


class Decay(KERAS.schedules.LearningRateSchedule):
    def __call__(self, step):
        return rates(tf.cast(step, tf.float32))


@NAMES
@pytest.mark.parametrize("rate", [0.3, Decay()], ids=["number", "schedule"])
@pytest.mark.parametrize("shards", [1, 3])
def test_rows_move_as_kerass_own_variable_does(name, rate, shards):
    rng = np.random.default_rng(3)
    start = rng.normal(size=(KEYS, DIM)).astype(np.float32)
    truth = tf.Variable(start)
    reference = MAKERS[name](rate)
    v = de.Variable(dim=DIM, devices=["/CPU:0"] * shards)
    v.upsert(range(KEYS), start)
    optimizer = de.DynamicEmbeddingOptimizer(MAKERS[name](rate))

    @tf.function
    def step(slices):
        optimizer.apply_gradients([(slices, v)])

    # Every key in every step, one of them twice: Keras moves all rows.
    keys = tf.constant([0, 1, 2, 3, 1], tf.int64)
    for _ in range(STEPS):
        values = rng.normal(size=(5, DIM)).astype(np.float32)
        step(tf.IndexedSlices(tf.constant(values), keys))
        dense = np.zeros([KEYS, DIM], np.float32)
        np.add.at(dense, keys.numpy(), values)
        reference.apply_gradients([(tf.constant(dense), truth)])

    np.testing.assert_allclose(
        v.lookup(range(KEYS)), truth.numpy(), rtol=2e-4, atol=1e-5
    )
    assert int(optimizer.iterations) == STEPS


def test_dense_variables_of_the_same_list_are_kerass_own():
    v = de.Variable(dim=2)
    layer = tf.keras.layers.Dense(1, kernel_initializer="ones")
    layer.build([None, 2])
    optimizer = de.DynamicEmbeddingOptimizer(KERAS.SGD(0.5))
    variables = [v, *layer.trainable_variables]

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(de.embedding_lookup(v, ids)))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))

    step(tf.constant([1, 1, 2], tf.int64))

    np.testing.assert_allclose(v.lookup([1, 2]), [[-1, -1], [-0.5, -0.5]])
    np.testing.assert_allclose(layer.bias, [-1.5])
    np.testing.assert_allclose(layer.kernel, [[1], [1]])
    assert int(optimizer.iterations) == 1


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("through_wrapper", [False, True])
def test_a_number_that_is_set_later_is_refused(traced, through_wrapper):
    inner = MAKERS["Adam"](0.1)
    optimizer = de.DynamicEmbeddingOptimizer(inner)
    v, dense = de.Variable(dim=DIM), tf.Variable([1.0])
    v.upsert([1], [[1.0] * DIM])
    gradients = [(_slices(1), v), (tf.constant([1.0]), dense)]
    (optimizer if through_wrapper else inner).beta_1 = 0.5
    assert inner.beta_1 == optimizer.beta_1 == 0.5

    step = optimizer.apply_gradients
    with pytest.raises(errors.StateError, match="beta_1=0.8.*'beta_1': 0.5"):
        (tf.function(step) if traced else step)(gradients)
    assert v.lookup([1]).numpy().tolist() == [[1.0] * DIM]
    assert dense.numpy() == [1.0]

    inner.beta_1 = 0.8
    assert optimizer.beta_1 == 0.8
    step(gradients)
    assert (v.lookup([1]).numpy() < 1).all()


def test_clipping_that_is_set_later_counts():
    optimizer = de.DynamicEmbeddingOptimizer(KERAS.SGD(1.0))
    v = de.Variable(dim=DIM)
    optimizer.clipvalue = 0.25
    optimizer.apply_gradients([(_slices(1), v)])
    assert v.lookup([1]).numpy().tolist() == [[-0.25] * DIM]


def _slices(key):
    return tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([key], tf.int64))


def test_horovod_is_refused():
    with pytest.raises(NotImplementedError, match="Horovod"):
        de.DynamicEmbeddingOptimizer(KERAS.SGD(), synchronous=True)
