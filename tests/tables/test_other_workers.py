"""Devices of other processes: where no op can run, tables are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from tests.servers import free_ports

# A table on a device of another process is made only where ops run there: by
# `devices` of Variable, HashTable and layers, and by tf.device around them and
# TPUEmbedding, inside and outside of a strategy's scope. (A tf.Variable in such
# a tf.device ends the process in TensorFlow itself.)

WORKER = """
    import sys, tensorflow as tf, tfembed
    import tfembed.dynamic_embedding as de
    from tfembed import errors

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    me = strategy.cluster_resolver.task_id
    own, other = (f"/job:worker/task:{i}/device:CPU:0" for i in (me, 1 - me))
    tf.zeros([])

    def in_scope(device, make):
        with tf.device(device):
            return make()

    config = tfembed.FeatureConfig(tfembed.TableConfig(None, 4, name="t"))
    ways = {
        "variable": lambda at: de.Variable(dim=4, name="v", devices=[own, at]),
        "part": lambda at: de.Variable(dim=4, name="p", devices=[at[11:]]),
        "table": lambda at: tfembed.HashTable(4, name="h", devices=[at]),
        "layer": lambda at: de.keras.layers.Embedding(4, devices=[at]).build(
            [None]
        ),
        "scope": lambda at: in_scope(at, lambda: de.Variable(dim=4, name="s")),
        "embedding": lambda at: in_scope(
            at, lambda: tfembed.TPUEmbedding(config, tfembed.SGD(0.1)).build(8)
        ),
    }
    refused = []
    for scope in (strategy.scope(), tf.name_scope("outside")):
        with scope:
            for name, make in ways.items():
                try:
                    make(own)
                except errors.UnsupportedError:
                    assert name == "embedding"  # No strategy of workers.
                    continue
                try:
                    make(other)
                except errors.ArgumentError as error:
                    assert "on a CPU of this process" in str(error), error
                    refused.append(name)
    # Without TensorFlow's end of a process: it waits for the other worker.
    print("refused", *refused, flush=True)
    import os
    os._exit(0)
"""

SERVER = """
    import sys, tensorflow as tf
    import tfembed.dynamic_embedding as de

    cluster = tf.train.ClusterSpec({"ps": [f"localhost:{sys.argv[1]}"]})
    server = tf.distribute.Server(cluster, "ps", 0)
    tf.config.experimental_connect_to_cluster(cluster)
    there = "/job:ps/task:0/device:CPU:0"
    table = de.Variable(dim=2, name="v", devices=[there])
    table.upsert(tf.constant([7], tf.int64), [[1.0, 2.0]])
    print(table.lookup(tf.constant([7], tf.int64)).numpy().tolist(), flush=True)
    import os
    os._exit(0)
"""


def start(program, *arguments, config=None):
    environment = dict(os.environ)
    if config:
        environment["TF_CONFIG"] = json.dumps(config)
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_a_table_on_another_worker_of_a_strategy_is_refused():
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    workers = [
        start(
            WORKER,
            config={
                "cluster": {"worker": addresses},
                "task": {"type": "worker", "index": i},
            },
        )
        for i in range(2)
    ]

    for worker in workers:
        said, _ = worker.communicate(timeout=180)
        names = ["variable", "part", "table", "layer", "scope"]
        assert f"refused {' '.join(names * 2)} embedding" in said, said
        assert worker.returncode == 0


@pytest.mark.slow
def test_a_table_on_a_server_is_made():
    (port,) = free_ports(1)

    said, _ = start(SERVER, str(port)).communicate(timeout=180)

    assert said.splitlines()[-1] == "[[1.0, 2.0]]", said
