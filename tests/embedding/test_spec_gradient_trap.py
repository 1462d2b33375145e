"""Section 1.1 of the specification: the gradient trap of layers on top."""

from __future__ import annotations

import pytest
import tensorflow as tf

from embedding import counting, marks


def _trapped(embedding, name):
    """Activations whose gradient trains the tables, as layers on top do it."""

    @tf.custom_gradient
    def trap(value):
        activations = embedding.dequeue(name)["clicks"]

        def gradient(upstream):
            embedding.apply_gradients({"clicks": upstream}, name)
            return tf.zeros_like(value)

        return activations, gradient

    return trap


@pytest.mark.parametrize("in_function", [False, True])
def test_the_gradient_trap_of_several_lookups_in_a_step(in_function):
    embedding = counting.embedding()
    dummy = tf.Variable(0.0)

    def step():
        with tf.GradientTape() as tape:
            loss = 0.0
            for name, i in (("one", 1), ("two", 2)):
                embedding.enqueue({"clicks": tf.constant([i])}, name=name)
                loss += i * tf.reduce_sum(_trapped(embedding, name)(dummy))
        tape.gradient(loss, dummy)

    (tf.function(step) if in_function else step)()
    assert counting.moved(embedding) == [0, 1, 2, 0]


@marks.REPLICAS
def test_the_gradient_trap_of_two_replicas():
    strategy = counting.mirrored()
    embedding = counting.embedding(strategy)
    with strategy.scope():
        dummy = tf.Variable(0.0)

    @tf.function
    def step():
        def one_replica():
            context = tf.distribute.get_replica_context()
            ids = tf.reshape(context.replica_id_in_sync_group, [1])
            embedding.enqueue({"clicks": ids}, name="trap")
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(_trapped(embedding, "trap")(dummy))
            tape.gradient(loss, dummy)

        strategy.run(one_replica)

    step()
    assert counting.moved(embedding) == [1, 1, 0, 0]
