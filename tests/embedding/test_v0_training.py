"""TPUEmbeddingV0: its attributes, and what its steps train.

test_spec_v0_lookups.py has the lookups.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from cpu_replicas import mirrored
from embedding import v0
from tfembed import errors

STRATEGIES = {
    "default": tf.distribute.get_strategy,
    "one_device": lambda: tf.distribute.OneDeviceStrategy("/CPU:0"),
    "mirrored": lambda: mirrored(2),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_is_made_and_called_under_any_single_client_strategy(strategy):
    """The RuntimeError off a TPU is exempt: removing it is the point."""
    strategy = STRATEGIES[strategy]()
    with strategy.scope():
        embedding = v0.embedding()
    outputs = strategy.run(tf.function(lambda: embedding(tf.constant([1, 3]))))
    for output in strategy.experimental_local_results(outputs):
        assert output.numpy().tolist() == v0.ROWS[[1, 3]].tolist()


def test_the_base_class_refuses_an_unknown_optimizer():
    with pytest.raises(errors.ArgumentError, match="unsupported optimizer"):
        v0.embedding(optimizer="sgd")


def test_the_base_class_refuses_a_name_used_twice():
    features = [tfembed.FeatureConfig(v0.table()) for _ in range(2)]
    with pytest.raises(errors.ArgumentError, match="with name users found"):
        tfembed.TPUEmbeddingV0(features, None)


def test_build_makes_trainable_tables_and_slots_that_are_not():
    embedding = v0.embedding(optimizer=tfembed.Adam(0.1))
    embedding.build()
    embedding.build()
    made = embedding._variables["users"]
    assert list(made) == ["parameters", "momenta", "velocities"]
    assert [v.trainable for v in made.values()] == [True, False, False]
    assert [v.name for v in made.values()] == [
        "users:0",
        "users/momenta:0",
        "users/velocities:0",
    ]


def test_tables_are_replicated_where_the_strategy_has_replicas():
    with STRATEGIES["mirrored"]().scope():
        embedding = v0.embedding()
    assert isinstance(v0.table_of(embedding), tf.distribute.DistributedValues)


def test_embedding_tables_build():
    embedding = v0.embedding()
    assert v0.table_of(embedding).numpy().tolist() == v0.ROWS.tolist()


def test_a_call_builds_in_a_function_too():
    embedding = v0.embedding()
    tf.function(embedding)(tf.constant([1]))
    assert embedding._built


def test_a_call_is_an_embedding_lookup():
    embedding = v0.embedding()
    for one, other in zip(
        embedding(v0.SPARSE, v0.WEIGHTS),
        embedding.embedding_lookup(v0.SPARSE, weights=v0.WEIGHTS),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_the_engines_calls_are_not_there():
    for call in ("enqueue", "dequeue", "apply_gradients"):
        assert not hasattr(tfembed.TPUEmbeddingV0, call)


KERAS = [
    lambda: keras.optimizers.SGD(0.5),
    lambda: keras.optimizers.Adagrad(0.5),
    lambda: keras.optimizers.Adam(0.5),
]


@pytest.mark.parametrize("make", KERAS, ids=["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_keras_optimizer_trains_the_tables_from_a_tape(make, strategy):
    strategy = STRATEGIES[strategy]()
    with strategy.scope():
        embedding = v0.embedding(combiner="sum")
        embedding.build()
        optimizer = make()
    table = v0.table_of(embedding)
    with strategy.scope():
        optimizer.build([table])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(embedding(v0.SPARSE))
        gradient = tape.gradient(loss, table)
        assert isinstance(gradient, tf.IndexedSlices)
        optimizer.apply_gradients([(gradient, table)])

    strategy.run(step)
    moved = table.numpy() != v0.ROWS
    assert moved[:, 0].tolist() == [False, True, True, True]


def _adagrad(rows, gradients, rate=0.5, start=0.1):
    """The summed gradient of a row, applied once, by Keras' formula."""
    accumulators = start + gradients**2
    return rows - rate * gradients / np.sqrt(accumulators + 1e-7)


@pytest.mark.parametrize("compiled", [None, False, True])
def test_gradients_of_a_repeated_id_are_summed_before_the_optimizer(compiled):
    """Keras 3 squares each entry of tf.IndexedSlices by itself."""
    users = v0.table(combiner="sum")
    features = [tfembed.FeatureConfig(users) for _ in range(2)]
    embedding = tfembed.TPUEmbeddingV0(features, None)
    optimizer, table = keras.optimizers.Adagrad(0.5), v0.table_of(embedding)
    optimizer.build([table])

    def step(clicks, ids):
        bags = tf.RaggedTensor.from_row_splits(clicks, [0, 2, 3])
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(x) for x in embedding([bags, ids])])
        gradient = tape.gradient(loss, table)
        assert isinstance(gradient, tf.IndexedSlices)
        optimizer.apply_gradients([(gradient, table)])

    if compiled is not None:
        step = tf.function(step, jit_compile=compiled)
    step(tf.constant([1, 1, 3]), tf.constant([3, 1, 0]))

    counts = np.array([[1.0], [3.0], [0.0], [2.0]])
    np.testing.assert_allclose(table, _adagrad(v0.ROWS, counts), 1e-6)


@pytest.mark.parametrize("replicas", [2, 4])
def test_a_step_of_the_embedding_sums_over_replicas_before_the_optimizer(
    replicas,
):
    strategy = mirrored(replicas)
    with strategy.scope():
        embedding = v0.embedding(combiner="sum")
        optimizer = keras.optimizers.Adagrad(0.5)
        embedding.build_optimizer(optimizer)
    table = v0.table_of(embedding)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(embedding(tf.constant([1, 3])))
        embedding.apply_optimizer(
            optimizer, [(tape.gradient(loss, table), table)]
        )

    strategy.run(step)
    counts = np.array([[0.0], [replicas], [0.0], [replicas]])
    for copy in strategy.experimental_local_results(table):
        np.testing.assert_allclose(copy, _adagrad(v0.ROWS, counts), 1e-6)


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("name", ["Adagrad", "Adam"])
def test_a_step_of_the_embedding_builds_an_optimizer_that_nobody_built(
    name, in_function, replicas
):
    trained = []
    for is_built in (True, False):
        strategy = mirrored(replicas)
        with strategy.scope():
            embedding = v0.embedding(combiner="sum")
            optimizer = getattr(keras.optimizers, name)(0.5)
            weight = tf.Variable([2.0, 3.0])
            if is_built:
                embedding.build_optimizer(optimizer, [weight])
        variables = [v0.table_of(embedding), weight]

        def step(embedding=embedding, optimizer=optimizer, variables=variables):
            with tf.GradientTape() as tape:
                rows = embedding(tf.constant([1, 3]))
                loss = tf.reduce_sum(rows * variables[1])
            gradients = tape.gradient(loss, variables)
            embedding.apply_optimizer(
                optimizer, zip(gradients, variables, strict=True)
            )

        step = tf.function(step) if in_function else step
        for _ in range(2):
            strategy.run(step)
        for variable in variables:
            for copy in strategy.experimental_local_results(variable):
                np.testing.assert_array_equal(copy, variable)
        trained.append([variable.numpy() for variable in variables])
    for one, other in zip(*trained, strict=True):
        np.testing.assert_allclose(one, other, 1e-6)


def test_a_tf_keras_optimizer_trains_the_tables():
    tf_keras = pytest.importorskip("tf_keras")
    _check_one_step(tf_keras.optimizers.SGD(0.5).apply_gradients)
    _check_one_step(tf_keras.optimizers.legacy.SGD(0.5).apply_gradients)


def test_an_optimizer_of_tensorflow_1_trains_the_tables():
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)
    _check_one_step(optimizer.apply_gradients)


def _check_one_step(apply_gradients):
    embedding = v0.embedding(combiner="sum")
    table = v0.table_of(embedding)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(embedding(v0.SPARSE, v0.WEIGHTS))
    apply_gradients([(tape.gradient(loss, table), table)])
    moved = v0.ROWS - table.numpy()
    assert moved[:, 0].tolist() == [0.0, 0.5, 0.0, 0.25]


def test_a_table_without_a_vocabulary_trains_with_a_dynamic_optimizer():
    table = tfembed.TableConfig(None, 2, name="users", combiner="sum", seed=3)
    embedding = tfembed.TPUEmbeddingV0(tfembed.FeatureConfig(table), None)
    rows = embedding.embedding_tables[table]
    optimizer = tfembed.dynamic_embedding.DynamicEmbeddingOptimizer(
        keras.optimizers.SGD(0.5)
    )
    ids = tf.ragged.constant([[10**12, -3], [], [-3]], dtype=tf.int64)
    before = embedding(ids).numpy()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(embedding(ids))
    optimizer.apply_gradients([(tape.gradient(loss, rows), rows)])
    np.testing.assert_allclose(
        before - embedding(ids).numpy(), [[1.5] * 2, [0] * 2, [1.0] * 2], 1e-6
    )


def test_the_checkpoint_keys_are_those_of_tpu_embedding(tmp_path):
    embedding = v0.embedding(optimizer=tfembed.Adagrad(0.1))
    embedding.build()
    path = tf.train.Checkpoint(embedding=embedding).save(tmp_path / "v0")
    theirs = v0.THEIRS.TPUEmbedding(
        v0.THEIRS.FeatureConfig(v0.table(v0.THEIRS)), v0.THEIRS.Adagrad(0.1)
    )
    checkpoint = tf.train.Checkpoint(embedding=theirs)
    theirs.build()
    checkpoint.restore(path).assert_consumed()
    again = checkpoint.save(tmp_path / "theirs")
    assert tf.train.list_variables(again) == tf.train.list_variables(path)


def test_clipping_and_decay_of_the_rule_are_the_optimizers_alone():
    """The embedding optimizer makes slots and nothing else."""
    rule = tfembed.SGD(0.1, clipvalue=1e-6, weight_decay_factor=0.5)
    embedding = v0.embedding(optimizer=rule, combiner="sum")
    table = v0.table_of(embedding)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(embedding(tf.constant([1])))
    keras.optimizers.SGD(1.0).apply_gradients(
        [(tape.gradient(loss, table), table)]
    )
    assert (v0.ROWS - table.numpy())[1].tolist() == [1.0, 1.0]


def test_static_tables_run_under_xla():
    embedding = v0.embedding(combiner="sum")
    embedding.build()

    @tf.function(jit_compile=True)
    def look_up(ids):
        return embedding(ids)

    assert (
        look_up(tf.constant([1, 3])).numpy().tolist()
        == v0.ROWS[[1, 3]].tolist()
    )


@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_train_as_one_batch_does(replicas):
    strategy = mirrored(replicas)
    with strategy.scope():
        embedding = v0.embedding(combiner="sum")
        embedding.build()
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build(embedding.trainable_variables)
    table = v0.table_of(embedding)
    ids = np.array([[1, 3], [3, 2]])
    shares = np.split(ids, replicas)

    @tf.function
    def step(share):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(embedding(tf.reshape(share, [-1])))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(shares[context.replica_id_in_sync_group])
    )
    strategy.run(step, args=(values,))
    moved = (v0.ROWS - table.numpy())[:, 0]
    assert moved.tolist() == [0.0, 0.5, 0.5, 1.0]
