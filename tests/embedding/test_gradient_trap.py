"""Layers on top of TPUEmbedding catch gradients by a trap variable."""

from __future__ import annotations

import itertools

import pytest
import tensorflow as tf

from embedding import counting, marks
from tfembed import errors


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


@marks.REPLICAS
@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("pipelined", [False, True])
def test_replicas_of_a_layer_that_numbers_its_calls(in_function, pipelined):
    """Each replica calls the layer, which counts on."""
    strategy = counting.mirrored()
    embedding = counting.embedding(
        strategy, pipeline_execution_with_tensor_core=pipelined
    )
    with strategy.scope():
        dummy = tf.Variable(0.0)
    calls = itertools.count()

    def one_replica():
        name = str(next(calls))
        context = tf.distribute.get_replica_context()
        ids = tf.reshape(context.replica_id_in_sync_group, [1])
        embedding.enqueue({"clicks": ids}, name=name)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(_trapped(embedding, name)(dummy))
        tape.gradient(loss, dummy)

    def step():
        strategy.run(one_replica)

    (tf.function(step) if in_function else step)()
    embedding.flush()
    assert counting.moved(embedding) == [1, 1, 0, 0]


@marks.REPLICAS
def test_names_of_replicas_are_for_input_of_the_same_types():
    strategy = counting.mirrored()
    embedding = counting.embedding(strategy)
    inputs = (tf.constant([0]), tf.ragged.constant([[1]], dtype=tf.int32))

    def one_replica():
        context = tf.distribute.get_replica_context()
        replica = int(context.replica_id_in_sync_group)
        name = f"of replica {replica}"
        embedding.enqueue({"clicks": inputs[replica]}, name=name)
        embedding.apply_gradients(embedding.dequeue(name), name)

    with pytest.raises(
        errors.ArgumentError, match="clicks is a Ragged.* replica"
    ):
        strategy.run(one_replica)


@pytest.mark.parametrize("in_function", [False, True])
def test_a_layer_evaluates_what_it_enqueued_for_training(in_function):
    """TensorFlow: a name without apply_gradients is for inference."""
    embedding = counting.embedding()
    dummy = tf.Variable(0.0)

    def look_up(i):
        embedding.enqueue({"clicks": tf.reshape(i, [1])}, name="layer")
        return tf.reduce_sum(_trapped(embedding, "layer")(dummy))

    def train(i):
        with tf.GradientTape() as tape:
            loss = look_up(i)
        tape.gradient(loss, dummy)

    if in_function:
        look_up, train = tf.function(look_up), tf.function(train)
    for i in (1, 2, 2):
        look_up(tf.constant(i))
    train(tf.constant(1))
    assert float(look_up(tf.constant(1))) == -2.0
    train(tf.constant(1))
    assert counting.moved(embedding) == [0, 2, 0, 0]
