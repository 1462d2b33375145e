"""TPUEmbeddingV0(engine=): what it is, whole compiled steps, and replicas."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import v0_batches
from proof.paper_tpu import paper_strategy, traced_on_paper
from tfembed import errors

OPTIMIZERS = {
    "keras sgd": lambda: keras.optimizers.SGD(0.5, momentum=0.9),
    "keras adagrad": lambda: keras.optimizers.Adagrad(0.5),
    "keras adam": lambda: keras.optimizers.Adam(0.5),
    "v1 sgd": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.5),
    "v1 adam": lambda: tf.compat.v1.train.AdamOptimizer(0.5),
    "v1 adagrad, dense": lambda: tf.compat.v1.train.AdagradOptimizer(0.5),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_steps_train_as_eager_ones_of_the_host(name):
    trained = {}
    for engine in ("host", "xla"):
        embedding = v0_batches.embedding(engine, "sum")
        table, optimizer = v0_batches.table(embedding), OPTIMIZERS[name]()
        # Makes its slots, outside of functions.
        optimizer.apply_gradients([(tf.zeros_like(table), table)])

        def step(ids, embedding=embedding, table=table, optimizer=optimizer):
            ragged, _ = v0_batches.ragged(ids, tf.cast(ids, tf.float32), 0)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(embedding({"clicks": ragged})["clicks"])
            gradient = tape.gradient(loss, table)
            if name.endswith("dense"):
                gradient = tf.convert_to_tensor(gradient)
            optimizer.apply_gradients([(gradient, table)])

        if engine == "xla":
            step = tf.function(step, jit_compile=True)
        for _ in range(3):
            step(tf.constant(v0_batches.IDS))
        trained[engine] = table.numpy()
    np.testing.assert_allclose(trained["xla"], trained["host"], 1e-5, 1e-6)
    assert (trained["xla"] != v0_batches.ROWS).any(1).tolist() == [
        i in v0_batches.IDS for i in range(9)
    ]


def test_what_the_engine_cannot_do_is_said_when_it_is_made():
    growing = tfembed.FeatureConfig(tfembed.TableConfig(None, 4, name="new"))
    with pytest.raises(errors.ArgumentError, match=r"new.*vocabulary_size"):
        tfembed.TPUEmbeddingV0(growing, None, engine="xla")
    with pytest.raises(
        errors.ArgumentError, match="'replicated', 'xla'.*'tpu'"
    ):
        v0_batches.embedding("tpu")
    combiner = tfembed.CustomCombiner(lambda valency, vectors: vectors[0], 2)
    with pytest.raises(errors.UnsupportedError, match="users.*CustomCombiner"):
        v0_batches.embedding("xla", combiner)


def test_engines_are_described():
    assert "no TPUStrategy" in v0_batches.embedding("auto").describe()
    assert (
        "users  xla     engine='xla' was"
        in v0_batches.embedding("xla").describe()
    )
    with tf.Graph().as_default(), paper_strategy(1).scope():
        assert (
            "users  replicated  a TPUStrategy"
            in v0_batches.embedding("auto").describe()
        )
        with pytest.raises(errors.UnsupportedError, match="host memory"):
            v0_batches.embedding("host")
        growing = tfembed.FeatureConfig(
            tfembed.TableConfig(None, 4, name="new")
        )
        with pytest.raises(errors.ArgumentError, match="new"):
            tfembed.TPUEmbeddingV0(growing, None)


def test_checkpoints_go_from_one_engine_to_the_other(tmp_path):
    saved = v0_batches.embedding("xla", optimizer=tfembed.Adagrad(0.1))
    v0_batches.table(saved).assign_add(tf.ones_like(v0_batches.ROWS))
    path = tf.train.Checkpoint(e=saved).save(tmp_path / "v0")
    for engine in ("host", "xla"):
        read = v0_batches.embedding(engine, optimizer=tfembed.Adagrad(0.1))
        read.build()
        tf.train.Checkpoint(e=read).restore(path).assert_consumed()
        np.testing.assert_array_equal(
            v0_batches.table(read), v0_batches.ROWS + 1
        )


def test_replicas_compile_their_own_lookups():
    strategy = tf.distribute.MirroredStrategy(
        ["/CPU:0", "/CPU:1"],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    with strategy.scope():
        embedding = v0_batches.embedding("xla")
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(embedding.trainable_variables)
    table = v0_batches.table(embedding)

    @tf.function(jit_compile=True)
    def gradient_of(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(embedding({"clicks": ids})["clicks"])
        return tape.gradient(loss, table)

    @tf.function
    def step():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        gradient = gradient_of(tf.reshape(replica, [1]) + 3)
        optimizer.apply_gradients([(gradient, table)])

    strategy.run(step)

    moved = v0_batches.ROWS - table.numpy()
    np.testing.assert_allclose(moved[:, 0], [0, 0, 0, 1, 1, 0, 0, 0, 0], 1e-5)


@pytest.mark.parametrize("hosts", [1, 4])
def test_a_tpus_step_looks_up_in_its_own_copy(hosts):
    with traced_on_paper(hosts, cores_per_host=2) as (graph, strategy):
        embedding = v0_batches.embedding("auto", "mean")
        embedding.build()
        table = v0_batches.table(embedding)

        def step():
            ids, weights = v0_batches.ragged(
                tf.constant(v0_batches.IDS), tf.constant(v0_batches.WEIGHTS), 1
            )
            with tf.GradientTape() as tape:
                found = embedding({"clicks": ids}, {"clicks": weights})
                loss = tf.reduce_sum(found["clicks"])
            return tape.gradient(loss, table).values

        strategy.run(step)

    gathers = [
        op
        for op in graph.get_operations()
        if op.type == "ResourceGather"
        or (op.type == "GatherV2" and op.inputs[0].shape == [9, 3])
    ]
    assert len(gathers) == 1
    assert "_tpu_replicate" in gathers[0].node_def.attr
    for op in graph.get_operations():
        assert "_xla_outside_compilation" not in op.node_def.attr
        assert op.type not in ("Where", "Unique", "SparseReshape", "Assert")
