"""AutoGraph converts the user's functions, and leaves ours as they are."""

from __future__ import annotations

import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from tfembed.tables import HashTable

KEYS = tf.constant([3, 4], tf.int64)


def table(**options):
    return de.Variable(dim=1, initializer=0.0, **options)


def train(variable, optimizer):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            rows = de.embedding_lookup(variable, KEYS, name="rows")
            loss = tf.reduce_sum(rows)
        gradient = tape.gradient(loss, variable)
        optimizer.apply_gradients([(gradient, variable)])

    step()


def test_the_functions_of_a_lookup_are_ours_as_they_are_written():
    files = []

    def partitioner(keys, shard_num):
        files.extend(frame.filename for frame in traceback.extract_stack())
        return tf.zeros_like(keys)

    variable = table(devices=["/CPU:0"] * 2, partitioner=partitioner)

    @tf.function
    def look_up():
        return de.embedding_lookup(variable, KEYS, name="rows")

    look_up()

    ours = [file for file in files if "tfembed" in file.split("/")]
    for module in ("lookup", "hash_table", "partition"):
        assert any(file.endswith(f"/{module}.py") for file in ours)


def test_a_partitioner_may_branch_on_a_tensor():
    def partitioner(keys, shard_num):
        if tf.size(keys) > 1:
            return tf.ones_like(keys)
        return tf.zeros_like(keys)

    variable = table(devices=["/CPU:0"] * 2, partitioner=partitioner)

    tf.function(lambda: variable.upsert(KEYS, [[1.0], [2.0]]))()

    assert [int(variable.size(i)) for i in range(2)] == [0, 2]


def test_a_loss_may_branch_on_a_tensor():
    variable = table()
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))

    def loss():
        rows = de.embedding_lookup(variable, KEYS, name="rows")
        if tf.reduce_sum(rows) < 1.0:
            return 2.0 * tf.reduce_sum(rows)
        return tf.reduce_sum(rows)

    @tf.function
    def step():
        optimizer.minimize(loss, [variable])

    step()

    np.testing.assert_array_equal(variable.lookup(KEYS), [[-2.0], [-2.0]])


def rate_of(step):
    if step < 1:
        return tf.constant(3.0)
    return tf.constant(1.0)


@pytest.mark.parametrize("takes_the_step", [False, True])
def test_a_learning_rate_may_branch_on_a_tensor(takes_the_step):
    variable, step = table(), tf.Variable(0)

    def rate():
        return rate_of(step)

    rule = tfembed.SGD(rate_of if takes_the_step else rate)
    train(variable, de.DynamicEmbeddingOptimizer(rule))

    np.testing.assert_array_equal(variable.lookup(KEYS), [[-3.0], [-3.0]])


def test_a_learning_rate_of_a_hash_table_may_branch_on_a_tensor():
    rows, step = HashTable(1, name="rows", initializer=0.0), tf.Variable(0)

    def rate():
        return rate_of(step)

    rows.attach(tfembed.SGD(rate))

    @tf.function
    def update():
        rows.apply_gradients(KEYS, tf.ones([2, 1]))

    update()

    np.testing.assert_array_equal(rows.lookup(KEYS)[0], [[-3.0], [-3.0]])


class CountsLargeKeys(de.RestrictPolicy):
    def __init__(self, var):
        super().__init__(var)
        self.count = tf.Variable(0)

    @property
    def status(self):
        raise NotImplementedError

    def apply_update(self, ids):
        for key in ids:
            if key > 3:
                self.count.assign_add(1)

    def apply_restriction(self, num_reserved, **kwargs):
        raise NotImplementedError


def test_a_policy_may_branch_on_a_tensor():
    variable = table(restrict_policy=CountsLargeKeys)

    train(variable, de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0)))

    assert int(variable.restrict_policy.count) == 1
