"""The same tables under every strategy, in loops, traced once."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import marks, steps
from property import cases
from tfembed import errors, optimizers

VOCABULARY = cases.VOCABULARY
IDS = range(-60, 60)
GLOBAL_BATCH = 8


def _rows(shape, dtype):
    """The same for every table that is made."""
    return tf.random.stateless_uniform(shape, [3, 5], -1.0, 1.0, dtype)


def _strategy(replicas: int):
    if replicas == 0:
        return tf.distribute.get_strategy()
    if replicas == 1:
        return tf.distribute.OneDeviceStrategy("/CPU:0")
    return tf.distribute.MirroredStrategy(
        [f"/CPU:{i}" for i in range(replicas)]
    )


def _embedding(strategy, vocabulary, optimizer) -> tfembed.TPUEmbedding:
    arguments = {"seed": 7} if vocabulary is None else {"initializer": _rows}
    with strategy.scope():
        return tfembed.TPUEmbedding(
            steps.configs(vocabulary=vocabulary, **arguments), optimizer
        )


def _shard(step: steps.Step, replica: int, replicas: int) -> steps.Step:
    """A replica's part of a global batch."""
    part = slice(
        replica * GLOBAL_BATCH // replicas,
        (replica + 1) * GLOBAL_BATCH // replicas,
    )
    features = [
        steps.Feature(**{**vars(f), "bags": f.bags[part]})
        for f in step.oracle_features
    ]
    return steps.Step(features, [g[part] for g in step.gradients])


def _distributed(strategy, shards):
    """One structure per replica, as distributed values."""
    if len(shards) == 1:
        return shards[0]
    return tf.nest.map_structure(
        lambda *values: strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group]
        ),
        *shards,
    )


def _run_steps(replicas: int, vocabulary, optimizer, *, inside: bool):
    """The tables after some steps of the same global batches."""
    strategy = _strategy(replicas)
    embedding = _embedding(strategy, vocabulary, optimizer)

    def train(features, weights, gradients):
        if inside:
            embedding.enqueue(features, weights)
        embedding.dequeue()
        embedding.apply_gradients(gradients)

    @tf.function(reduce_retracing=True)
    def run(features, weights, gradients):
        if not inside:
            embedding.enqueue(features, weights)
        strategy.run(train, args=(features, weights, gradients))

    rng = np.random.default_rng(11)
    for _ in range(6):
        step = steps.draw_step(rng, GLOBAL_BATCH)
        parts = max(replicas, 1)
        shards = [_shard(step, r, parts) for r in range(parts)]
        features, weights = zip(*[s.inputs() for s in shards], strict=True)
        gradients = [s.structured_gradients() for s in shards]
        run(
            _distributed(strategy, features),
            _distributed(strategy, weights),
            _distributed(strategy, gradients),
        )
    return steps.Tables.of(embedding, IDS)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    "vocabulary", [VOCABULARY, pytest.param(None, marks=marks.GROWS)]
)
@pytest.mark.parametrize(
    "replicas", [1, *(pytest.param(n, marks=marks.REPLICAS) for n in (2, 4))]
)
def test_replicas_leave_the_same_tables_as_one(replicas, vocabulary, inside):
    optimizer = optimizers.Adagrad(0.5)
    one = _run_steps(0, vocabulary, optimizer, inside=True)
    many = _run_steps(replicas, vocabulary, optimizer, inside=inside)
    for expected, actual in zip(one.rows, many.rows, strict=True):
        for i in expected:
            np.testing.assert_allclose(actual[i], expected[i], 1e-5, 1e-6)
    for expected, actual in zip(one.slots, many.slots, strict=True):
        for i in expected:
            np.testing.assert_allclose(actual[i], expected[i], 1e-5, 1e-6)


def _count(embedding, rate=1.0):
    """One step in a function: each looked-up row moves by -1."""
    activations = embedding.dequeue()
    embedding.apply_gradients(tf.nest.map_structure(tf.ones_like, activations))


def _zeros(shape, dtype):
    return tf.zeros(shape, dtype)


def _counting(strategy) -> tuple[tfembed.TableConfig, tfembed.TPUEmbedding]:
    table = tfembed.TableConfig(4, 2, _zeros, name="users", combiner="sum")
    with strategy.scope():
        return table, tfembed.TPUEmbedding(
            tfembed.FeatureConfig(table), tfembed.SGD(1.0)
        )


def _row(embedding, table, i):
    return embedding.embedding_tables[table].numpy()[i, 0]


@pytest.mark.parametrize(
    "replicas", [0, 1, pytest.param(2, marks=marks.REPLICAS)]
)
def test_a_loop_in_a_function_trains_at_every_iteration(replicas):
    strategy = _strategy(replicas)
    table, embedding = _counting(strategy)

    @tf.function
    def loop(n):
        for i in tf.range(n):
            embedding.enqueue(tf.stack([i % 4]))
            strategy.run(_count, args=(embedding,))

    loop(tf.constant(6))
    rows = embedding.embedding_tables[table].numpy()[:, 0]
    # Plain tensors are every replica's.
    assert (rows / -max(replicas, 1)).tolist() == [2, 2, 1, 1]


def test_an_eager_enqueue_feeds_a_traced_dequeue():
    table, embedding = _counting(_strategy(0))
    step = tf.function(lambda: _count(embedding))
    for i in (0, 0, 3):
        embedding.enqueue(tf.constant([i]))
        step()
    assert embedding.embedding_tables[table].numpy()[:, 0].tolist() == [
        -2,
        0,
        0,
        -1,
    ]


def test_batches_may_be_enqueued_ahead():
    table, embedding = _counting(_strategy(0))
    for i in range(3):
        embedding.enqueue(tf.constant([i]))
    for i in range(3):
        _count(embedding)
        assert _row(embedding, table, i) == -1
    assert _row(embedding, table, 3) == 0


@marks.REPLICAS
def test_each_device_may_enqueue_its_own_batch():
    strategy = _strategy(2)
    table, embedding = _counting(strategy)
    for i, device in enumerate(strategy.extended.worker_devices):
        embedding.enqueue(tf.constant([i + 1]), device=device)
    tf.function(lambda: strategy.run(_count, args=(embedding,)))()
    rows = embedding.embedding_tables[table].numpy()[:, 0]
    assert rows.tolist() == [0, -1, -1, 0]


@marks.REPLICAS
def test_a_device_without_a_replica_is_refused():
    _, embedding = _counting(_strategy(2))
    with pytest.raises(errors.ArgumentError, match="CPU:3"):
        embedding.enqueue(tf.constant([0]), device="/CPU:3")


@marks.REPLICAS
def test_a_mirrored_strategy_makes_one_copy_of_a_table():
    table, embedding = _counting(_strategy(4))
    variable = embedding.embedding_tables[table]
    assert not isinstance(variable, tf.distribute.DistributedValues)
    assert variable.name == "users:0"
    assert variable.trainable


@marks.REPLICAS
def test_dequeue_outside_of_run_is_refused_where_replicas_differ():
    strategy = _strategy(2)
    _, embedding = _counting(strategy)
    embedding.enqueue(tf.constant([0]))
    for scope in (strategy.scope(), tf.name_scope("no_strategy")):
        with (
            scope,
            pytest.raises(errors.StateError, match=r"inside of strategy\.run"),
        ):
            embedding.dequeue()


@marks.REPLICAS
def test_eager_strategy_run_trains():
    strategy = _strategy(2)
    table, embedding = _counting(strategy)
    embedding.enqueue(tf.constant([1]))
    strategy.run(_count, args=(embedding,))
    assert _row(embedding, table, 1) == -2


@marks.GROWS
def test_a_step_is_traced_once_however_many_ids_it_has():
    table = tfembed.TableConfig(None, 4, name="users")
    embedding = tfembed.TPUEmbedding(
        [tfembed.FeatureConfig(table), tfembed.FeatureConfig(table)],
        tfembed.SGD(0.1),
    )
    ragged = tf.RaggedTensorSpec([2, None], tf.int64)
    sparse = tf.SparseTensorSpec([2, None], tf.int64)

    @tf.function(input_signature=[ragged, sparse])
    def step(one, two):
        embedding.enqueue([one, two])
        _count(embedding)

    for n in (0, 1, 5, 100):
        ids = tf.ragged.range([n, 3])
        step(tf.cast(ids, tf.int64), tf.cast(ids, tf.int64).to_sparse())
    assert step.experimental_get_tracing_count() == 1
    assert embedding.sizes()["users"].rows == 100
