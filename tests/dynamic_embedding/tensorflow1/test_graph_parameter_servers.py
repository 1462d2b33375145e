"""Programs of TensorFlow 1 whose tables lie on parameter servers."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

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
