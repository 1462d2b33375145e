"""RunConfig: values, replace, and the clusters of TF_CONFIG."""

from __future__ import annotations

import json
import pathlib

import pytest
import tensorflow as tf

from tfembed import errors, estimator

CLUSTER = {
    "chief": ["host0:1"],
    "worker": ["host1:1", "host2:1"],
    "ps": ["host3:1"],
}


def config_of(monkeypatch, **environment):
    monkeypatch.setenv("TF_CONFIG", json.dumps(environment))
    return estimator.RunConfig()


def test_defaults_are_those_of_one_process(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    config = estimator.RunConfig()

    assert (config.task_type, config.task_id) == ("worker", 0)
    assert config.is_chief
    assert (config.num_ps_replicas, config.num_worker_replicas) == (0, 1)
    assert (config.save_checkpoints_secs, config.save_checkpoints_steps) == (
        600,
        None,
    )
    assert not config.save_input_state


def test_a_replaced_copy_leaves_the_first_as_it_is():
    config = estimator.RunConfig(save_checkpoints_secs=5)
    other = config.replace(save_checkpoints_steps=7, model_dir="/there")

    assert (other.save_checkpoints_secs, other.save_checkpoints_steps) == (
        None,
        7,
    )
    assert config.save_checkpoints_secs == 5
    assert config.model_dir is None


def test_a_path_is_taken_as_a_string():
    config = estimator.RunConfig(model_dir=pathlib.Path("some") / "where")

    assert config.model_dir == "some/where"


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (("chief", 0), (True, 0, "grpc://host0:1", 3, 1)),
        (("worker", 1), (False, 2, "grpc://host2:1", 3, 1)),
        (("ps", 0), (False, 3, "grpc://host3:1", 3, 1)),
        (("evaluator", 0), (False, None, "", 0, 0)),
    ],
)
def test_a_task_knows_its_place_in_the_cluster(monkeypatch, task, expected):
    config = config_of(
        monkeypatch,
        cluster=CLUSTER,
        task={"type": task[0], "index": task[1]},
    )

    assert (config.task_type, config.task_id) == task
    assert expected == (
        config.is_chief,
        config.global_id_in_cluster,
        config.master,
        config.num_worker_replicas,
        config.num_ps_replicas,
    )


def test_a_worker_sees_parameter_servers_and_itself(monkeypatch):
    config = config_of(
        monkeypatch, cluster=CLUSTER, task={"type": "worker", "index": 1}
    )

    assert list(config.session_config.device_filters) == [
        "/job:ps",
        "/job:worker/task:1",
    ]


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"task": {"type": "ps"}}, "task type must be WORKER.*'ps'"),
        ({"task": {"index": 3}}, "task index must be 0. Given 3"),
        ({"cluster": {"worker": ["a:1"]}}, 'must have one "chief" node'),
        (
            {"cluster": {"chief": ["a:1", "b:1"]}},
            'only one "chief" node.*b:1',
        ),
        ({"cluster": CLUSTER}, "task type must be set"),
        ({"cluster": CLUSTER, "task": {"type": "ps"}}, "task index must be"),
        (
            {"cluster": CLUSTER, "task": {"type": "ps", "index": -1}},
            "non-negative number. Given -1",
        ),
        (
            {"cluster": CLUSTER, "task": {"type": "ps", "index": 2}},
            "2 is not a valid task_id",
        ),
        (
            {"cluster": CLUSTER, "task": {"type": "cook", "index": 0}},
            "cook is not a valid task_type",
        ),
        (
            {"cluster": {"master": ["a:1"], "chief": ["b:1"]}},
            "job `chief` is not supported",
        ),
        (
            {
                "cluster": {"master": ["a:1"]},
                "task": {"type": "evaluator", "index": 0},
            },
            "`evaluator` is not supported",
        ),
        ({"model_dir": ""}, "model_dir in TF_CONFIG should be non-empty"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(monkeypatch, environment, text):
    with pytest.raises(errors.ArgumentError, match=text):
        config_of(monkeypatch, **environment)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_what_is_no_json_object_is_shown(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)

    with pytest.raises(errors.ArgumentError, match="TF_CONFIG must be"):
        estimator.RunConfig()


def test_a_service_must_be_a_dict(monkeypatch):
    with pytest.raises(errors.DtypeError, match="it must be a dict"):
        config_of(monkeypatch, service=[1])


def test_two_model_dirs_that_differ_are_refused(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"model_dir": "/one"}))

    with pytest.raises(errors.ArgumentError, match="/other"):
        estimator.RunConfig(model_dir="/other")
    assert estimator.RunConfig().model_dir == "/one"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model_dir": ""}, "model_dir should be non-empty"),
        ({"save_summary_steps": -1}, "save_summary_steps should be >= 0"),
        ({"save_checkpoints_steps": -1}, "steps should be >= 0. Given -1"),
        ({"save_checkpoints_secs": -1}, "secs should be >= 0. Given -1"),
        (
            {"save_checkpoints_secs": 1, "save_checkpoints_steps": 1},
            "cannot be both set",
        ),
        ({"session_config": {}}, "must be instance of ConfigProto"),
        ({"keep_checkpoint_max": -1}, "keep_checkpoint_max should be >= 0"),
        ({"keep_checkpoint_every_n_hours": 0}, "n_hours should be > 0"),
        ({"log_step_count_steps": 0}, "log_step_count_steps should be > 0"),
        ({"tf_random_seed": 1.5}, "tf_random_seed must be integer"),
        ({"device_fn": lambda x: x}, 'one argument "op"'),
        ({"protocol": "carrier pigeon"}, "protocol should be grpc"),
        ({"session_creation_timeout_secs": 0}, "timeout_secs should be > 0"),
        ({"experimental_max_worker_delay_secs": 0.5}, "must be an integer"),
        ({"experimental_distribute": object()}, "TF_CONFIG with train_and_"),
    ],
)
def test_values_that_are_not_allowed_are_refused(options, text):
    with pytest.raises(errors.ArgumentError, match=text):
        estimator.RunConfig(**options)


def test_names_that_cannot_be_replaced_are_refused():
    with pytest.raises(
        errors.ArgumentError, match="Replacing master is not.*model_dir"
    ):
        estimator.RunConfig().replace(master="here")


def test_an_estimator_completes_a_config(tmp_path):
    def model_fn(features):
        return features

    model = estimator.Estimator(model_fn, tmp_path)

    assert model.config.model_dir == model.model_dir == str(tmp_path)
    assert isinstance(model.config.session_config, tf.compat.v1.ConfigProto)
    with pytest.raises(errors.ArgumentError, match="different values"):
        estimator.Estimator(
            model_fn, tmp_path, config=estimator.RunConfig(model_dir="/other")
        )
    with pytest.raises(errors.ArgumentError, match="instance of `RunConfig`"):
        estimator.Estimator(model_fn, config={"model_dir": "/other"})
    with pytest.raises(errors.ArgumentError, match="model_fn must be prov"):
        estimator.Estimator(None, tmp_path)
