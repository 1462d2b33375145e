"""Programs of TensorFlow 1 whose tables lie on parameter servers."""

from __future__ import annotations

import socket

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import start, train, v1
from tests.dynamic_embedding.optimizer_makers import IN_GRAPHS


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("localhost", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(name="servers", scope="module")
def make_servers():
    addresses = [f"localhost:{port}" for port in free_ports(3)]
    cluster = tf.train.ClusterSpec(
        {"ps": addresses[:2], "worker": addresses[2:]}
    )
    return cluster, [
        tf.distribute.Server(cluster, job_name=job, task_index=index)
        for job, index in (("ps", 0), ("ps", 1), ("worker", 0))
    ]


@pytest.mark.parametrize("name", ["v1 Adam", "v1 Momentum", "legacy Adam"])
def test_shards_of_several_servers_are_trained_and_restored(
    tmp_path, servers, name
):
    cluster, (*_, worker) = servers
    found = []
    for devices in (
        ["/CPU:0"],
        ["/job:ps/task:0/CPU:0", "/job:ps/task:1/CPU:0"],
    ):
        setter = v1.train.replica_device_setter(
            worker_device="/job:worker/task:0", cluster=cluster
        )
        target = worker.target if len(devices) > 1 else ""
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
