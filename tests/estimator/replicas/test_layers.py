"""Layers of old model_fns in replicas: statistics and masks of their own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed.estimator.replicas import replicate

tf_keras = pytest.importorskip("tf_keras")
layers = pytest.importorskip("tf_keras.src.legacy_tf_layers")

v1 = tf.compat.v1
REPLICAS, ROWS, WIDTH = 4, 6, 3


def _images(seed):
    draw = np.random.RandomState(seed)
    return draw.normal(size=(REPLICAS, ROWS, 2, 2, WIDTH)).astype(np.float32)


def _replicas(step):
    inputs = [
        [v1.placeholder(tf.float32, [ROWS, 2, 2, WIDTH])]
        for _ in range(REPLICAS)
    ]
    return inputs, replicate(step, inputs)


def _feed(inputs, images):
    return {x: image for (x,), image in zip(inputs, images)}


def test_batch_normalization_has_each_replicas_own_statistics():
    from tf_keras.src.legacy_tf_layers import normalization

    def step(x):
        y = normalization.batch_normalization(x, training=True, momentum=0.9)
        loss = tf.reduce_mean(tf.square(y - 1.0))
        optimizer = v1.tpu.CrossShardOptimizer(
            v1.train.GradientDescentOptimizer(0.5)
        )
        updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(updates):
            return y, optimizer.minimize(loss)

    with tf.Graph().as_default(), v1.Session() as session:
        inputs, replicas = _replicas(step)
        session.run(v1.global_variables_initializer())
        session.run(replicas.start_of_loop)
        first = session.run(replicas.outputs, _feed(inputs, _images(0)))
        session.run(replicas.outputs, _feed(inputs, _images(1)))
        found = {
            v.op.name.rsplit("/")[-1]: session.run(v)
            for v in v1.global_variables()
        }

    for (y, _), image in zip(first, _images(0)):
        rows = image.reshape(-1, WIDTH)
        expected = (image - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-3)
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)
    mean = np.zeros(WIDTH)
    for seed in range(2):
        mean = 0.9 * mean + 0.1 * _images(seed)[0].reshape(-1, WIDTH).mean(0)
    np.testing.assert_allclose(found["moving_mean"], mean, rtol=1e-4)
    # Normalized values have mean 0 in each replica: so beta's gradient is -2/3
    # of its distance to 1, a third of the loss being of one channel.
    beta = np.zeros(WIDTH)
    for _ in range(2):
        beta -= 0.5 * 2 / WIDTH * (beta - 1)
    np.testing.assert_allclose(found["beta"], beta, rtol=1e-4)


def test_dropout_layers_draw_a_mask_for_each_replica_again_every_step():
    def step(x):
        return tf_keras.layers.Dropout(0.5)(tf.ones_like(x), training=True)

    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(4)
        inputs, replicas = _replicas(step)
        feed = _feed(inputs, _images(0))
        masks = [
            mask.tobytes()
            for _ in range(2)
            for mask in session.run(replicas.outputs, feed)
        ]

    assert len(set(masks)) == 2 * REPLICAS


def test_summaries_of_a_step_are_there_once():
    def step(x):
        return v1.summary.scalar("average", tf.reduce_mean(x))

    with tf.Graph().as_default(), v1.Session() as session:
        inputs, _ = _replicas(step)
        (summary,) = v1.get_collection(v1.GraphKeys.SUMMARIES)
        found = session.run(summary, _feed(inputs, _images(0)))

    (value,) = v1.Summary.FromString(found).value
    assert value.tag == "average"
    assert value.simple_value == pytest.approx(_images(0)[0].mean(), rel=1e-4)
