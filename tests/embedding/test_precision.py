"""Half precision, scaled losses, tapes of several kinds, determinism."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import fresh_process
import tfembed
from embedding import marks


def _zeros(shape, dtype):
    return tf.zeros(shape, dtype)


def _embedding(rate=0.5):
    table = tfembed.TableConfig(4, 2, _zeros, name="users")
    return tfembed.TPUEmbedding(tfembed.FeatureConfig(table), tfembed.SGD(rate))


def _rows(embedding):
    return next(iter(embedding.embedding_tables.values())).numpy()


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_a_model_in_half_precision_with_a_scaled_loss_trains(dtype):
    embedding = _embedding(rate=0.125)
    dense = tf.Variable(tf.ones([2, 1]))
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.01), initial_scale=2.0**12
    )
    optimizer.build([dense])

    @tf.function
    def step():
        embedding.enqueue(tf.constant([1, 2]))
        rows = embedding.dequeue()
        with tf.GradientTape() as tape:
            tape.watch(rows)
            outputs = tf.cast(rows, dtype) @ tf.cast(dense, dtype)
            loss = tf.reduce_sum((tf.cast(outputs, tf.float32) - 1.0) ** 2)
            scaled = optimizer.scale_loss(loss)
        by_rows, by_dense = tape.gradient(scaled, [rows, dense])
        scale = tf.convert_to_tensor(optimizer.dynamic_scale)
        embedding.apply_gradients(by_rows / scale)
        optimizer.apply_gradients([(by_dense, dense)])
        return loss

    losses = [float(step()) for _ in range(5)]
    assert _rows(embedding).dtype == np.float32
    assert losses[0] == 2.0
    assert losses[-1] < 0.1


def test_a_persistent_tape_gives_gradients_twice_and_they_apply_once():
    embedding = _embedding()
    embedding.enqueue(tf.constant([1]))
    rows = embedding.dequeue()
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(rows)
        one, two = tf.reduce_sum(rows), tf.reduce_sum(3.0 * rows)
    embedding.apply_gradients(
        tape.gradient(one, rows) + tape.gradient(two, rows)
    )
    assert _rows(embedding)[:, 0].tolist() == [0.0, -2.0, 0.0, 0.0]


def test_the_tables_are_no_part_of_a_tape_around_dequeue():
    embedding = _embedding()
    (table,) = embedding.embedding_tables.values()
    with tf.GradientTape() as tape:
        embedding.enqueue(tf.constant([1]), training=False)
        loss = tf.reduce_sum(embedding.dequeue())
    assert tape.gradient(loss, table) is None


def _in_function(function):
    return tf.function(function)


def _in_branch(function):
    @tf.function
    def run(x):
        return tf.cond(x > 0, lambda: function(x), lambda: tf.constant(0.0))

    return run


def _in_loop(function):
    @tf.function
    def run(x):
        def body(i, total):
            return i + 1, total + function(x)

        return tf.while_loop(lambda i, _: i < 1, body, (0, 0.0))[1]

    return run


def _trained():
    embedding = _embedding()
    embedding.enqueue(tf.constant([1, 2]))
    embedding.apply_gradients(-tf.ones_like(embedding.dequeue()))
    return embedding


@pytest.mark.parametrize("wrap", [_in_function, _in_branch, _in_loop])
def test_a_tape_may_be_around_what_dequeues(wrap):
    embedding = _trained()
    factor = tf.Variable(3.0)

    def loss(x):
        embedding.enqueue(tf.constant([1, 2]))
        rows = embedding.dequeue()
        embedding.apply_gradients(tf.zeros_like(rows))
        return x * factor * tf.reduce_sum(rows)

    with tf.GradientTape() as tape:
        value = wrap(loss)(tf.constant(2.0))
    assert float(value) == 2.0 * 3.0 * (0.5 * 4)
    assert float(tape.gradient(value, factor)) == 2.0 * (0.5 * 4)


def test_an_eager_tape_that_watches_the_table_may_see_dequeue():
    embedding = _trained()
    (table,) = embedding.embedding_tables.values()
    embedding.enqueue(tf.constant([1, 2]))
    with tf.GradientTape() as tape:
        penalty = tf.reduce_sum(tf.square(table))
        loss = penalty + tf.reduce_sum(embedding.dequeue())
    np.testing.assert_array_equal(tape.gradient(loss, table), 2 * table.numpy())


def test_a_lookup_that_trains_has_no_second_order_gradients():
    embedding = _embedding()
    trap = tf.Variable(0.0)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            rows = embedding.trained_lookup().look_up(
                tf.constant([1]), trap=tf.convert_to_tensor(trap)
            )
            loss = tf.reduce_sum(rows**2)
        first = inner.gradient(loss, trap)
    with pytest.raises(LookupError, match="second-order"):
        outer.gradient(first, trap)


@pytest.mark.slow
@marks.GROWS
def test_training_is_repeated_exactly_under_op_determinism():
    printed = [
        fresh_process.output_of(
            """
            import tensorflow as tf
            tf.keras.utils.set_random_seed(3)
            tf.config.experimental.enable_op_determinism()
            import tfembed
            tables = [tfembed.TableConfig(n, 8, name=f"t{n}") for n in (50, None)]
            embedding = tfembed.TPUEmbedding(
                [tfembed.FeatureConfig(t) for t in tables], tfembed.Adagrad(0.1)
            )

            @tf.function
            def step(ids):
                embedding.enqueue([ids, ids])
                rows = embedding.dequeue()
                embedding.apply_gradients([tf.sin(9.0 * r) for r in rows])
                return tf.add_n([tf.reduce_sum(r) for r in rows])

            for i in range(20):
                ids = tf.random.stateless_uniform([64], [i, 1], 0, 50, tf.int64)
                print(float(step(ids)).hex())
            """
        )
        for _ in range(2)
    ]
    assert printed[0] == printed[1]
    assert len(set(printed[0].split())) == 20
