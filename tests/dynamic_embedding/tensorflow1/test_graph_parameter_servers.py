"""Programs of TensorFlow 1 whose tables lie on parameter servers."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import start, train, v1
from tests.dynamic_embedding.optimizer_makers import IN_GRAPHS
from tests.servers import Servers


@pytest.fixture(name="servers", scope="module")
def make_servers():
    return Servers(2)


@pytest.mark.parametrize("name", ["v1 Adam", "v1 Momentum", "legacy Adam"])
def test_shards_of_several_servers_are_trained_and_restored(
    tmp_path, servers, name
):
    found = []
    for devices in (
        ["/CPU:0"],
        ["/job:ps/task:0/CPU:0", "/job:ps/task:1/CPU:0"],
    ):
        setter = servers.setter()
        target = servers.target if len(devices) > 1 else ""
        with (
            tf.Graph().as_default(),
            v1.device(setter if target else None),
            v1.Session(target) as session,
        ):
            ids = v1.placeholder(tf.int64, [None])
            v = de.Variable(
                dim=2,
                name=f"on_servers {name}",
                devices=devices,
                initializer=1.0,
            )
            dense = v1.get_variable("dense", initializer=1.0)
            count = v1.train.get_or_create_global_step()
            optimizer = de.DynamicEmbeddingOptimizer(IN_GRAPHS[name](0.1))
            step = optimizer.minimize(
                tf.reduce_sum(de.embedding_lookup(v, ids)) * dense,
                global_step=count,
            )
            saver = v1.train.Saver()
            start(session)
            train(session, step, ids, [[1, 2], [2, 2, 3]])
            path = saver.save(session, str(tmp_path / "ckpt"))
            train(session, step, ids, [[7]])
            saver.restore(session, path)
            train(session, step, ids, [[1, 3]])
            found.append(session.run([v.lookup([1, 2, 3, 7]), dense, count]))
    for alone, on_servers in zip(*found, strict=True):
        np.testing.assert_allclose(on_servers, alone, rtol=1e-6)


# One op updates the shards of one device, as one looks them up: also those of
# a HashTable that is trained by hand. Looked at too: DynamicEmbeddingOptimizer,
# lookups, notes, saves, which go by device already.
@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad"])
def test_a_table_of_several_servers_is_trained_by_hand(servers, optimizer):
    found = []
    for devices in (
        ["/CPU:0"],
        [
            "/job:ps/task:0/CPU:0",
            "/job:ps/task:1/CPU:0",
            "/job:ps/task:0/CPU:0",
        ],
    ):
        several = len(devices) > 1
        with (
            tf.Graph().as_default(),
            v1.device(servers.setter() if several else None),
            v1.Session(servers.target if several else "") as session,
        ):
            table = tfembed.HashTable(
                2, name=f"by hand {optimizer}", devices=devices, initializer=1.0
            )
            table.attach(getattr(tfembed, optimizer)(0.5))
            keys = tf.constant([1, 2, 3, 4, 2, 9], tf.int64)
            gradients = tf.reshape(tf.range(1.0, 13.0), [6, 2]) / np.array(
                [[1]] * 5 + [[0]], np.float32
            )
            step = table.apply_gradients(keys, gradients)
            start(session)
            counts = [session.run(step), session.run(step)]
            found.append([counts, session.run(table.lookup(keys)[0])])

    assert found[0][0] == found[1][0] == [1, 1]
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-6)
    assert (found[0][1][:5] != 1).all()


IDS = np.array([[1, 2, 3], [2, 2, 0], [7, 0, 0]])
LOOKUPS = {
    "unique": lambda v: de.embedding_lookup_unique(v, IDS),
    "sparse": lambda v: de.embedding_lookup_sparse(
        v, tf.sparse.from_dense(tf.constant(IDS, tf.int64)), None
    ),
    "gathered": lambda v: tf.gather(de.embedding_lookup(v, IDS), [0, 2, 2]),
    "wrapper": lambda v: de.embedding_lookup(v, IDS, return_trainable=True)[0],
}


# Rows are trained where they are used: the op that their gradient passes through
# does not go to the first server, to which TensorFlow's gradients could not
# follow, and through which all rows went. Looked at too: functions that a
# coordinator schedules; estimators' tables, which have sums made by the servers.
def test_every_lookup_is_trained_on_the_worker(servers):
    found = []
    for setter, target in ((servers.setter(), servers.target), (None, "")):
        with (
            tf.Graph().as_default(),
            v1.device(setter),
            v1.Session(target) as session,
        ):
            tables = {
                name: de.get_variable(f"by {name}", dim=2, initializer=0.5)
                for name in LOOKUPS
            }
            losses = [
                tf.reduce_sum(LOOKUPS[name](v) ** 2)
                for name, v in tables.items()
            ]
            optimizer = de.DynamicEmbeddingOptimizer(
                v1.train.AdagradOptimizer(0.1)
            )
            step = optimizer.minimize(tf.add_n(losses))
            start(session)
            ran = v1.RunMetadata()
            session.run(
                step,
                options=v1.RunOptions(output_partition_graphs=True),
                run_metadata=ran,
            )
            session.run(step)
            found.append(session.run(losses))
        places = {
            tf.DeviceSpec.from_string(node.device).job
            for graph in ran.partition_graphs
            for node in graph.node
            if node.op.startswith("Tfembed>TrainableRows")
        }
        assert places == {"worker" if target else "localhost"}

    np.testing.assert_allclose(*found, rtol=1e-6)


# A step sends a server one message with the distinct ids of each lookup, and two
# to train all tables: ids and sums. No id and no row goes by itself. Looked at
# too: estimators' tables, whose servers make sums; reads without a gradient.
def test_a_step_sends_each_server_packed_messages(servers):
    with (
        tf.Graph().as_default(),
        v1.device(servers.setter()),
        v1.Session(servers.target) as session,
    ):
        tables = [de.get_variable(f"packed {i}", dim=2) for i in range(3)]
        ids = v1.placeholder(tf.int64, [None])
        losses = [
            tf.reduce_sum(de.embedding_lookup(v, ids) ** 2) for v in tables
        ]
        optimizer = de.DynamicEmbeddingOptimizer(v1.train.AdagradOptimizer(0.1))
        step = optimizer.minimize(tf.add_n(losses))
        start(session)
        ran = v1.RunMetadata()
        session.run(
            step,
            {ids: IDS.reshape(-1)},
            options=v1.RunOptions(output_partition_graphs=True),
            run_metadata=ran,
        )
    sent = collections.Counter(
        (
            tf.DeviceSpec.from_string(
                node.attr["recv_device"].s.decode().lstrip("/")
            ).job,
            tf.as_dtype(node.attr["T"].type),
        )
        for graph in ran.partition_graphs
        for node in graph.node
        if node.op == "_Send"
        and node.attr["send_device"].s != node.attr["recv_device"].s
    )
    packed = {job: sent.pop((job, tf.int8)) for job in ("ps", "worker")}

    assert packed == {"ps": 2 * (len(tables) + 2), "worker": 2 * len(tables)}
    # Single numbers: tokens of gradients, learning rates, counts.
    assert sum(sent.values()) <= 3 * len(tables) + 8
