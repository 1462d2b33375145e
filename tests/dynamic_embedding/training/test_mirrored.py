"""MirroredStrategy: replicas together move tables as one of them alone would."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_models
import tfembed.dynamic_embedding as de
from cpu_replicas import mirrored
from dynamic_embedding.mirrored_programs import (
    Program,
    keras_sgd,
    rows_of,
)
from dynamic_embedding.optimizer_makers import legacy
from tfembed import optimizers

REPLICAS = pytest.mark.parametrize("replicas", [2, 4])
IN_FUNCTION = pytest.mark.parametrize("in_function", [False, True])


def batches_of(step, replicas):
    rng = np.random.default_rng(step)
    return rng.integers(0, 9, (replicas, 5))


@IN_FUNCTION
@pytest.mark.parametrize("same_values", [False, True])
def test_replicas_that_share_a_tensor_count_each(in_function, same_values):
    strategy = mirrored(2)
    program = Program(strategy, keras_sgd)
    keys, shared = tf.constant([1, 2], tf.int64), tf.ones([2, 2])

    def step():
        values = shared if same_values else tf.ones([2, 2])
        gradient = tf.IndexedSlices(values, keys)
        program.optimizer.apply_gradients([(gradient, program.table)])

    def run():
        strategy.run(step)

    (tf.function(run) if in_function else run)()

    np.testing.assert_array_equal(program.table.lookup(keys), -tf.ones([2, 2]))


@REPLICAS
@IN_FUNCTION
@pytest.mark.parametrize(
    "optimizer",
    [
        keras_sgd,
        lambda: keras.optimizers.Adagrad(0.1),
        lambda: keras.optimizers.Adam(0.1),
        lambda: keras.optimizers.Lion(0.1),
        lambda: tf.compat.v1.train.AdagradOptimizer(0.1),
        lambda: legacy().Adam(0.1),
        lambda: legacy().Nadam(0.1),
    ],
    ids=[
        *("SGD", "Adagrad", "Adam", "Lion by rows", "v1 Adagrad"),
        *("legacy Adam", "legacy Nadam by rows"),
    ],
)
def test_replicas_move_rows_as_one_does(replicas, in_function, optimizer):
    alone = Program(tf.distribute.get_strategy(), optimizer)
    together = Program(
        mirrored(replicas), optimizer, devices=["/CPU:0", "/CPU:0"]
    )
    for step in range(4):
        batches = batches_of(step, replicas)
        alone.step(tf.constant(batches.ravel(), tf.int64))

        together.run(batches, in_function)

    expected, rows = alone.rows(), together.rows()
    assert rows.keys() == expected.keys()
    for key, row in rows.items():
        np.testing.assert_allclose(row, expected[key], rtol=1e-5)
    np.testing.assert_allclose(
        together.dense.numpy(), alone.dense.numpy(), rtol=1e-5
    )
    assert int(together.optimizer.iterations.numpy()) == 4


@pytest.mark.parametrize(
    "optimizer", [keras.optimizers.Adam, keras.optimizers.Nadam]
)
def test_fit_gives_the_numbers_of_one_replica(optimizer):
    found = []
    for strategy in (tf.distribute.get_strategy(), mirrored(2)):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = keras_models.model_of(optimizer(0.01))
        model.fit(keras_models.batches(), epochs=2, verbose=0, shuffle=False)
        found.append(keras_models.rows_of(keras_models.table_of(model)))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-7)


def test_tables_alone_count_one_step():
    program = Program(mirrored(2), lambda: optimizers.SGD(1.0))

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(rows_of(program.table, [3]))
        gradient = tape.gradient(loss, program.table)
        program.optimizer.apply_gradients([(gradient, program.table)])

    program.strategy.run(step)

    assert program.rows() == {3: [-1.0, -1.0]}
    assert int(program.optimizer.iterations.numpy()) == 1


def test_a_global_step_counts_one():
    program = Program(mirrored(2), keras_sgd)
    with program.strategy.scope():
        count = tf.Variable(0, dtype=tf.int64)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(rows_of(program.table, [3]))
        gradient = tape.gradient(loss, program.table)
        program.optimizer.apply_gradients(
            [(gradient, program.table)], global_step=count
        )

    program.strategy.run(step)

    assert int(count.numpy()) == 1


def step_beyond_finite(program):
    """Key 7's gradient is finite on each of two replicas, its sum is not."""
    with tf.GradientTape() as tape:
        rows = rows_of(program.table, [7, 7])
        loss = tf.reduce_sum(rows) * 1.5e38 + tf.reduce_sum(program.dense)
    variables = [program.table, program.dense]
    pairs = zip(tape.gradient(loss, variables), variables, strict=True)
    program.optimizer.apply_gradients(pairs)


def test_a_sum_that_is_not_finite_is_skipped_and_counted_once():
    program = Program(mirrored(2), keras_sgd)

    program.strategy.run(step_beyond_finite, (program,))

    assert program.rows() == {}
    np.testing.assert_array_equal(program.dense.numpy(), [-1.5, -1.5])
    assert int(program.optimizer.nonfinite_rows.numpy()) == 1


def test_a_refused_step_changes_nothing():
    program = Program(mirrored(2), keras_sgd, nonfinite="refuse")
    step = tf.function(
        lambda: program.strategy.run(step_beyond_finite, (program,))
    )

    with pytest.raises(tf.errors.InvalidArgumentError, match="finite"):
        step()

    assert program.rows() == {}
    np.testing.assert_array_equal(program.dense.numpy(), [0.5, 0.5])
    assert int(program.optimizer.iterations.numpy()) == 0


def test_a_policy_counts_a_key_of_all_replicas_once():
    program = Program(
        mirrored(2), keras_sgd, restrict_policy=de.FrequencyRestrictPolicy
    )

    program.run([[1, 2], [2, 3]])
    program.run([[2], [2]])
    program.table.restrict(1, trigger=0)

    assert program.rows().keys() == {2}


@IN_FUNCTION
def test_gradients_through_a_shadow_are_summed(in_function):
    program = Program(mirrored(2), keras_sgd)
    with program.strategy.scope():
        shadow = de.shadow_ops.ShadowVariable(program.table)

    def step():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        with tf.GradientTape() as tape:
            keys = tf.stack([tf.cast(1 + replica, tf.int64), 9])
            loss = tf.reduce_sum(de.shadow_ops.embedding_lookup(shadow, keys))
        gradient = tape.gradient(loss, shadow)
        program.optimizer.apply_gradients([(gradient, shadow)])

    def run():
        program.strategy.run(step)

    (tf.function(run) if in_function else run)()

    assert program.rows() == {1: [0, 0], 2: [0, 0], 9: [-1, -1]}


def test_a_checkpoint_goes_on_with_one_replica(tmp_path):
    programs = [
        Program(strategy, lambda: keras.optimizers.Adagrad(0.1))
        for strategy in (mirrored(2), tf.distribute.get_strategy())
    ]
    programs[0].run([[1, 2], [2, 3]])
    checkpoints = [
        tf.train.Checkpoint(table=p.table, dense=p.dense, optimizer=p.optimizer)
        for p in programs
    ]

    checkpoints[1].restore(checkpoints[0].save(str(tmp_path / "ckpt")))

    programs[0].run([[1], [3]])
    programs[1].step(tf.constant([1, 3], tf.int64))
    assert programs[1].rows() == programs[0].rows()
    assert int(programs[1].optimizer.iterations.numpy()) == 2
