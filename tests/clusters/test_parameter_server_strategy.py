"""Tables on the servers of a ParameterServerStrategy, in TensorFlow 2."""

from __future__ import annotations

import json
import os

import pytest
import tensorflow as tf

import fresh_process
import tfembed.dynamic_embedding as de

# The coordinator, two servers and a worker are one process, apart from the
# tests: TensorFlow does not let a process leave a cluster.
PROGRAM = """
    import json, os, sys
    import tensorflow as tf
    import tfembed, tfembed.dynamic_embedding as de
    from tests.servers import Servers

    servers = Servers(2)
    strategy = servers.strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    seen, keys = {}, tf.constant([1, 2, 2, 7], tf.int64)

    def scheduled(function):
        return coordinator.schedule(tf.function(function)).fetch().tolist()

    with strategy.scope():
        v = de.Variable(dim=1, name="v", initializer=1.0)
        optimizer = de.DynamicEmbeddingOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(0.5)
        )
        layer = tfembed.keras.layers.Embedding(
            2, key_dtype="int64", embeddings_initializer="ones"
        )
    here = de.Variable(dim=1, name="here")
    named = de.keras.layers.Embedding(2, devices=v.devices, name="named")

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(de.embedding_lookup(v, keys, name="l"))
        optimizer.apply_gradients(zip(tape.gradient(loss, [v]), [v]))
        return loss

    seen["devices"] = {
        "v": v.devices, "layer": layer.table.devices, "here": here.devices
    }
    seen["loss"] = scheduled(lambda: strategy.run(step))
    seen["rows"] = scheduled(lambda: v.lookup(keys))
    with strategy.scope():
        bias = tf.Variable(0.0)
        pairs = [
            (tf.constant(1.0), bias),
            (tf.IndexedSlices(tf.ones([1, 1]), keys[:1]), v),
        ]
        try:
            optimizer.apply_gradients(pairs)
        except tfembed.errors.StateError as error:
            seen["refused"] = str(error)
    seen["layer"] = scheduled(lambda: layer(keys))
    seen["config"] = named.get_config()

    model = tf.Module()
    model.v = de.Variable(dim=1, name="saved", devices=v.devices[1])
    model.v.upsert(keys, [[1.0], [2.0], [2.0], [7.0]])
    model.rows = tf.function(model.v.lookup, [tf.TensorSpec([None], tf.int64)])
    tf.saved_model.save(model, sys.argv[1])
    print(json.dumps(seen), flush=True)
    os._exit(0)  # The servers would wait for each other.
"""


@pytest.fixture(name="program", scope="module")
def run_program(tmp_path_factory):
    """Runs the program; returns what it saw, and its SavedModel."""
    folder = tmp_path_factory.mktemp("cluster")
    printed = fresh_process.output_of(PROGRAM, folder)
    return json.loads(printed.splitlines()[-1]), os.fspath(folder)


# An argument `devices` that is left out means the devices that workers share.
# Looked at too: graphs with a replica_device_setter, estimators' tables, slots,
# restrict policies; TPUEmbedding is refused under this strategy.
def test_tables_made_in_scope_lie_on_all_servers(program):
    seen, _ = program
    servers = [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(2)]

    assert seen["devices"] == {
        "v": servers,
        "layer": servers,
        "here": ["/CPU:0"],
    }


def test_workers_look_up_and_train_them(program):
    seen, _ = program

    assert seen["loss"] == 4.0
    assert seen["rows"] == [[0.5], [0.0], [0.0], [0.5]]
    assert seen["layer"] == [[1.0, 1.0]] * 4


def test_a_step_outside_of_a_replica_says_where_it_belongs(program):
    seen, _ = program

    assert "must be called inside of strategy.run" in seen["refused"]


# A file does not ask for the devices of the process that wrote it. Looked at
# too: functions of a SavedModel, whose ops name none; configs of tfembed.keras,
# without devices; meta graphs, which keep them as those of tf.Variables.
def test_a_saved_model_is_loaded_by_one_process(program):
    _, folder = program

    rows = tf.saved_model.load(folder).rows(tf.constant([7, 1], tf.int64))

    assert rows.numpy().tolist() == [[7.0], [1.0]]


def test_a_layer_of_a_cluster_is_made_again_by_one_process(program):
    seen, _ = program

    layer = de.keras.layers.Embedding.from_config(seen["config"])

    assert layer.params.devices == ["/CPU:0", "/CPU:0"]


def test_a_layer_that_was_given_no_devices_saves_none():
    layer = de.keras.layers.Embedding(2, name="free")
    given = de.keras.layers.Embedding(2, devices=["/CPU:1"], name="given")

    assert layer.get_config()["devices"] is None
    assert given.get_config()["devices"] == ["/CPU:1"]
    again = type(given).from_config(given.get_config())
    assert again.params.devices == ["/CPU:1"]
