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
