"""A chief, a worker, an evaluator and parameter servers that hold the tables."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.estimator import processes
from tests.estimator.programs import counting
from tests.servers import Servers
from tfembed import errors, estimator
from tfembed.estimator import tpu

v1 = tf.compat.v1

STEPS = 300
KILLED = [("worker", 0), ("ps", 1), ("chief", 0)]
JOBS = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1", "d:1"]}


def assert_counted(model):
    """Each row has moved once a step; of a step at a kill, some have."""
    step = model.get_variable_value("global_step")
    assert step >= STEPS
    for name, rows in counting.rows_of(model).items():
        np.testing.assert_allclose(rows, -step, atol=len(KILLED), err_msg=name)
    return step


def evaluated_steps(folder):
    return [
        event.step
        for path in folder.glob("events*")
        for event in v1.train.summary_iterator(str(path))
    ]


@pytest.mark.slow
def test_tables_on_servers_count_the_steps_of_all_workers(tmp_path):
    folder = str(tmp_path)
    with processes.Cluster(
        counting.train_and_evaluate, folder, STEPS
    ) as cluster:
        for task in KILLED:
            cluster.wait_for_checkpoint(folder)
            cluster.kill(*task)
            cluster.start(*task)
        statuses = [
            cluster.wait(job) for job in ("chief", "worker", "evaluator")
        ]

    assert statuses == [0, 0, 0]
    model = counting.make(folder)
    step = assert_counted(model)
    assert max(evaluated_steps(tmp_path / "eval")) == step
    before = counting.rows_of(model)
    model.train(counting.input_fn, steps=1)  # Without any servers.
    for name, rows in counting.rows_of(model).items():
        np.testing.assert_array_equal(rows, before[name] - 1, err_msg=name)


def _train_keras_model(folder):
    """Trains a line through one point, whose loss all workers lower."""
    import keras

    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, name="line")], name="one"
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")

    def rows():
        data = tf.data.Dataset.from_tensors(([[1.0]], [[3.0]]))
        return data.repeat()

    estimator.train_and_evaluate(
        estimator.model_to_estimator(model, model_dir=folder),
        estimator.TrainSpec(rows, max_steps=STEPS),
        estimator.EvalSpec(rows, steps=1, throttle_secs=0, start_delay_secs=0),
    )


@pytest.mark.slow
def test_a_keras_model_is_trained_by_all_workers_on_servers(tmp_path):
    folder = str(tmp_path)
    with processes.Cluster(_train_keras_model, folder) as cluster:
        statuses = [
            cluster.wait(job) for job in ("chief", "worker", "evaluator")
        ]

    assert statuses == [0, 0, 0]
    saved = tf.train.load_checkpoint(folder)
    assert saved.get_tensor("global_step") >= STEPS
    line = saved.get_tensor("one/line/kernel") + saved.get_tensor(
        "one/line/bias"
    )
    np.testing.assert_allclose(line, [[3.0]], rtol=1e-4)


@pytest.fixture(name="in_cluster")
def _in_cluster(monkeypatch):
    environment = {"cluster": JOBS, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(environment))


@pytest.mark.usefixtures("in_cluster")
def test_a_session_of_a_cluster_sees_the_servers_and_its_own_task(tmp_path):
    model = counting.make(str(tmp_path))

    filters = model.config.session_config.device_filters
    assert list(filters) == ["/job:ps", "/job:worker/task:0"]


@pytest.mark.usefixtures("in_cluster")
def test_replicas_in_a_cluster_with_servers_are_refused(tmp_path):
    with pytest.raises(errors.ArgumentError, match="use_tpu=False"):
        tpu.TPUEstimator(
            counting.model_fn,
            config=tpu.RunConfig(model_dir=str(tmp_path)),
            params={},
            train_batch_size=8,
        )


@pytest.mark.usefixtures("in_cluster")
def test_a_table_of_each_worker_alone_is_refused(tmp_path):
    model = counting.make(
        str(tmp_path), device_fn=lambda op: "/job:worker/task:0"
    )

    with pytest.raises(errors.StateError, match="Table 'far'.*its own copy"):
        model.train(counting.input_fn, steps=1)


def test_tables_lie_on_the_servers_of_the_graphs_setter():
    servers = Servers(2)
    with tf.Graph().as_default() as graph, graph.device(servers.setter()):
        placed = de.get_variable("placed", dim=2, initializer=0.0)
        others = [
            de.get_variable(name, dim=1, initializer=0.0, devices=[device])
            for name, device in (
                ("first", "/job:ps/task:0/CPU:0"),
                ("second", "/job:ps/task:1/CPU:0"),
            )
        ]
        ids = tf.constant([1, 2, 3], tf.int64)
        found = [de.embedding_lookup(one, ids) for one in (placed, *others)]
        loss = tf.add_n([tf.reduce_sum(each) for each in found])
        step = de.DynamicEmbeddingOptimizer(
            v1.train.GradientDescentOptimizer(1.0)
        ).minimize(loss)
        with v1.Session(servers.target) as session:
            session.run(v1.global_variables_initializer())
            session.run([step, loss])
            rows = session.run(found)

    tasks = [tf.DeviceSpec.from_string(device) for device in placed.devices]
    assert [(task.job, task.task) for task in tasks] == [("ps", 0), ("ps", 1)]
    for each in rows:
        np.testing.assert_array_equal(each, -np.ones_like(each))
