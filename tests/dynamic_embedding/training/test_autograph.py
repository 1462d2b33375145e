"""Steps in functions that AutoGraph converts, as users write them."""

from __future__ import annotations

import logging

import keras
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de


@pytest.fixture
def warnings():
    """The messages of TensorFlow's log from warnings on."""
    found: list[str] = []

    class Noted(logging.Handler):
        def emit(self, record):
            found.append(record.getMessage())

    handler = Noted(logging.WARNING)
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tfembed.optimizers.Adagrad(0.1),
        lambda: keras.optimizers.Adam(0.1),
        lambda: keras.optimizers.Nadam(0.1),
        lambda: tf.compat.v1.train.AdamOptimizer(0.1),
        lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9),
    ],
    ids=["rule", "keras", "other", "v1", "other v1"],
)
def test_a_step_is_converted_without_a_warning(make, warnings):
    table = de.Variable(dim=2, devices=["/CPU:0"] * 2, name="converted")
    optimizer = de.DynamicEmbeddingOptimizer(make())

    @tf.function
    def step(ids):
        for _ in tf.range(2):
            with tf.GradientTape() as tape:
                rows = de.embedding_lookup(table, ids, name="rows")
                loss = tf.reduce_sum(rows * rows + rows)
            gradient = tape.gradient(loss, table)
            optimizer.apply_gradients([(gradient, table)])

    step(tf.constant([1, 2, 2], tf.int64))
    assert int(table.size()) == 2
    assert not [text for text in warnings if "AutoGraph" in text]
