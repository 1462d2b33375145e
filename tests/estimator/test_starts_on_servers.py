"""A chief that starts again on parameter servers that hold rows already."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.servers import free_ports
from tfembed import estimator

v1 = tf.compat.v1


@pytest.fixture(name="servers")
def _servers(monkeypatch):
    """A parameter server and a chief in this process, which TF_CONFIG names."""
    ps, chief = (f"localhost:{port}" for port in free_ports(2))
    cluster = {"ps": [ps], "chief": [chief]}
    environment = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(environment))
    return [tf.distribute.Server(cluster, job, 0) for job in cluster]


def input_fn():
    ids = tf.data.Dataset.from_tensors(np.arange(4)).repeat()
    return ids.map(lambda ids: {"ids": ids})


def model_fn(features, mode, params):
    """Each step moves each row by -1."""
    rows = de.get_variable("rows", dim=2, initializer=0.0)
    found = de.embedding_lookup(rows, features["ids"])
    bias = v1.get_variable("bias", [], initializer=v1.zeros_initializer())
    loss = tf.reduce_sum(found) + bias
    optimizer = de.DynamicEmbeddingOptimizer(
        v1.train.GradientDescentOptimizer(1.0)
    )
    return estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, v1.train.get_global_step()),
        scaffold=params["make_scaffold"](rows),
    )


class Rows(v1.train.SessionRunHook):
    """Reads the table when a session ends."""

    def begin(self):
        with v1.variable_scope("", reuse=True):
            table = de.get_variable("rows", dim=2, initializer=0.0)
        self.read = de.embedding_lookup(table, np.arange(5), False)

    def end(self, session):
        self.rows = session.run(self.read)


def train(folder, make_scaffold, **options):
    model = estimator.Estimator(
        model_fn,
        params={"make_scaffold": make_scaffold},
        config=estimator.RunConfig(
            model_dir=str(folder), log_step_count_steps=None, **options
        ),
    )
    hook = Rows()
    model.train(input_fn, steps=3, hooks=[hook])
    return hook.rows


def no_scaffold(rows):
    return None


def filling(rows):
    """A scaffold that gives a row, which the model does not train, a value."""
    filled = rows.upsert(tf.constant([4], tf.int64), tf.ones([1, 2]))
    return v1.train.Scaffold(
        init_op=v1.global_variables_initializer(),
        init_fn=lambda scaffold, session: session.run(filled),
    )


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("make_scaffold", [no_scaffold, filling])
def test_a_chief_without_a_checkpoint_begins_with_empty_tables(
    tmp_path, make_scaffold
):
    never = {"save_checkpoints_steps": None, "save_checkpoints_secs": None}
    for _ in range(2):
        rows = train(tmp_path, make_scaffold, **never)

    np.testing.assert_array_equal(rows[:4], -3)
    np.testing.assert_array_equal(rows[4], make_scaffold is filling)


@pytest.mark.usefixtures("servers")
def test_a_chief_with_a_checkpoint_goes_on_with_its_rows(tmp_path):
    for steps in (3, 6):
        rows = train(tmp_path, no_scaffold)
        np.testing.assert_array_equal(rows[:4], -steps)
