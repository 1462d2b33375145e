"""The host engine inside of a TPU's step: traced, and run on CPU replicas."""

from __future__ import annotations

import threading
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import steps
from proof.paper_tpu import paper_strategy
from tfembed import errors
from tfembed.embedding import replicas
from tfembed.embedding.engines import choice as engine_choice
from tfembed.embedding.engines.engine import Entry
from tfembed.embedding.replicas import ReplicaInputs
from tfembed.embedding.tpu import host_engine as tpu_host_engine

REPLICAS = 3
IDS = range(-60, 60)


@pytest.fixture
def threads(monkeypatch):
    """Lets threads of the default strategy be the replicas of a TPU.

    Outside of a TPU's step, what is compiled outside of it is the function
    itself, so all of the engine's work is there.
    """
    number = threading.local()
    for module in (replicas, engine_choice):
        monkeypatch.setattr(module, "is_tpu", lambda strategy: True)
    monkeypatch.setattr(
        tpu_host_engine, "_this_replica", lambda: tf.constant(number.value)
    )
    monkeypatch.setattr(
        tpu_host_engine, "_replicas_and_host", lambda strategy: (REPLICAS, "")
    )

    def run(function, *per_replica):
        def of_replica(r):
            number.value = r
            return function(*(values[r] for values in per_replica))

        with futures.ThreadPoolExecutor(REPLICAS) as pool:
            return list(pool.map(of_replica, range(REPLICAS)))

    return run


def _rows(shape, dtype):
    return tf.random.stateless_uniform(shape, [3, 5], -1.0, 1.0, dtype)


@pytest.mark.parametrize("enqueues_inside", [True, False])
@pytest.mark.parametrize("vocabulary", [None, 60])
def test_replicas_train_as_the_oracle(threads, vocabulary, enqueues_inside):
    arguments = {"seed": 7} if vocabulary is None else {"initializer": _rows}
    optimizer = tfembed.Adagrad(0.1)
    embedding = tfembed.TPUEmbedding(
        steps.configs(vocabulary=vocabulary, **arguments),
        optimizer,
        engine="host",
    )
    embedding.build(per_replica_batch_size=steps.BATCH)
    rng = np.random.default_rng(11)
    for _ in range(3):
        step = steps.draw_step(rng, REPLICAS * steps.BATCH)
        shards = [_shard(step, r) for r in range(REPLICAS)]
        before = steps.Tables.of(embedding, IDS)
        if not enqueues_inside:
            engine = embedding._engine._engines[0][1]
            inputs = [
                ReplicaInputs(r, *map(tf.nest.flatten, shard.inputs()))
                for r, shard in enumerate(shards)
            ]
            engine.enqueue(None, Entry(True, inputs, embedding._shapes, {}))
        else:
            threads(lambda shard: embedding.enqueue(*shard.inputs()), shards)
        found = threads(lambda _: embedding.dequeue(), shards)
        threads(
            lambda shard: embedding.apply_gradients(
                shard.structured_gradients()
            ),
            shards,
        )
        fixed = vocabulary is not None
        for activations, shard in zip(found, shards, strict=True):
            steps.check_activations(
                activations, shard, before, fixed_vocabulary=fixed
            )
        after = steps.Tables.of(embedding, IDS)
        steps.check_update(
            before, after, step, optimizer, 0.1, fixed_vocabulary=fixed
        )


def _shard(step: steps.Step, replica: int) -> steps.Step:
    part = slice(replica * steps.BATCH, (replica + 1) * steps.BATCH)
    features = [
        steps.Feature(**{**vars(f), "bags": f.bags[part]})
        for f in step.oracle_features
    ]
    return steps.Step(features, [g[part] for g in step.gradients])


def test_batches_for_evaluation_need_no_gradients(threads):
    table = tfembed.TableConfig(8, 2, name="users")
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table), tfembed.SGD(0.1), engine="host"
    )
    ids = [tf.constant([r, r + 1], tf.int64) for r in range(REPLICAS)]
    embedding.build(per_replica_batch_size=2)

    def evaluate(ids):
        embedding.enqueue(ids, training=False)
        return embedding.dequeue().numpy()

    rows = embedding.embedding_tables[table].numpy()
    for _ in range(2):
        found = threads(evaluate, ids)
        for r, one in enumerate(found):
            np.testing.assert_array_equal(one, rows[[r, r + 1]])


@pytest.mark.parametrize("hosts", [1, 4])
def test_lookups_and_updates_are_traced_on_the_first_host(hosts):
    table = tfembed.TableConfig(None, 4, name="user")
    with tf.Graph().as_default() as graph:
        strategy = paper_strategy(hosts)
        with strategy.scope():
            embedding = tfembed.TPUEmbedding(
                tfembed.FeatureConfig(table), tfembed.Adagrad(0.1)
            )

            def step(ids):
                embedding.enqueue(ids)
                activations = embedding.dequeue()
                assert activations.shape == [2, 4]
                embedding.apply_gradients(tf.ones_like(activations))
                return tf.reduce_sum(activations)

            strategy.run(step, args=(tf.constant([1, 2], tf.int64),))
    ops = [op for op in graph.get_operations() if "Tfembed>" in op.type]
    inside = [op for op in ops if "_tpu_replicate" in op.node_def.attr]

    assert "Tfembed>GroupedLookup" in {op.type for op in inside}
    for op in inside:
        assert "_xla_outside_compilation" in op.node_def.attr
        assert op.device == "/job:worker/replica:0/task:0/device:CPU:0"
    branches = [graph._get_function(name) for name in graph._functions]
    assert any(
        node.op == "Tfembed>GroupedUpdate"
        for branch in branches
        for node in branch.cached_definition.node_def
    )


def test_what_runs_ahead_is_refused():
    table = tfembed.TableConfig(None, 4, name="user")
    with tf.Graph().as_default(), paper_strategy(1).scope():
        embedding = tfembed.TPUEmbedding(
            tfembed.FeatureConfig(table),
            tfembed.SGD(0.1),
            pipeline_execution_with_tensor_core=True,
        )
        with pytest.raises(errors.UnsupportedError, match=r"pipeline.*user"):
            embedding.build(per_replica_batch_size=4)


def test_a_layer_is_told_what_to_use():
    table = tfembed.TableConfig(None, 4, name="user")
    with tf.Graph().as_default(), paper_strategy(1).scope():
        embedding = tfembed.TPUEmbedding(
            tfembed.FeatureConfig(table), tfembed.SGD(0.1)
        )
        lookup = embedding.trained_lookup()
        with pytest.raises(errors.UnsupportedError, match="enqueue"):
            lookup.look_up(tf.constant([1], tf.int64), trap=None)
