"""TPUConfig and the RunConfig that holds one."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from tfembed import errors, estimator
from tfembed.estimator import tpu
from tfembed.estimator.tpu import context


class Resolver(tf.distribute.cluster_resolver.SimpleClusterResolver):
    """A cluster resolver whose master is an address."""

    def __init__(self):
        super().__init__(
            tf.train.ClusterSpec({"worker": ["10.0.0.2:8470"]}),
            master="grpc://10.0.0.2:8470",
        )


@pytest.mark.parametrize(
    "options, text",
    [
        ({"iterations_per_loop": 0}, "must be positive"),
        ({"iterations_per_loop": "x"}, "must be positive"),
        ({"num_shards": 0}, "num_shards must be positive"),
        ({"num_cores_per_replica": 3}, "must be 1, 2, 4, 8"),
        ({"initial_infeed_sleep_secs": -1}, "must be positive"),
        ({"experimental_host_call_every_n_steps": 0}, "must be positive"),
        ({"eval_training_input_configuration": 3}, "PER_HOST_V1 or SLICED"),
        ({"per_host_input_for_training": 5}, "SLICED is a value of"),
        ({"per_host_input_for_training": "yes"}, "must be True, False"),
        (
            {"input_partition_dims": [[1, 2]], "num_cores_per_replica": 2},
            "only supported in PER_HOST_V2",
        ),
        (
            {
                "input_partition_dims": [[1, 2]],
                "per_host_input_for_training": 3,
            },
            "requires setting num_cores_per_replica",
        ),
        (
            {
                "input_partition_dims": [[1], [1], [1]],
                "per_host_input_for_training": 3,
                "num_cores_per_replica": 2,
            },
            "one or two elements",
        ),
        (
            {
                "input_partition_dims": [None, [2]],
                "per_host_input_for_training": 3,
                "num_cores_per_replica": 2,
            },
            r"\[0\] must not be None",
        ),
    ],
)
def test_a_value_that_is_not_allowed_is_named(options, text):
    with pytest.raises(errors.ArgumentError, match=text):
        tpu.TPUConfig(**options)


def test_true_and_false_are_names_of_pipelines():
    pipelines = tpu.InputPipelineConfig
    assert tpu.TPUConfig().per_host_input_for_training == pipelines.PER_HOST_V1
    config = tpu.TPUConfig(per_host_input_for_training=False)
    assert config.per_host_input_for_training == pipelines.PER_SHARD_V1


def test_a_replaced_config_is_checked():
    config = tpu.TPUConfig(num_shards=2)._replace(num_shards=4)
    assert isinstance(config, tpu.TPUConfig)
    assert config.num_shards == 4
    with pytest.raises(errors.ArgumentError, match="must be positive"):
        config._replace(num_shards=-1)


def test_a_run_config_of_tpus_is_a_run_config_that_replaces_its_tpu_config():
    config = tpu.RunConfig(model_dir="/models", require_tpu=True)
    other = config.replace(
        tpu_config=tpu.TPUConfig(num_shards=8), save_checkpoints_steps=5
    )

    assert isinstance(other, tpu.RunConfig)
    assert isinstance(other, estimator.RunConfig)
    assert config.tpu_config.num_shards is None
    assert other.tpu_config.num_shards == 8
    assert other.save_checkpoints_steps == 5
    assert other.model_dir == "/models"
    assert other.require_tpu


def test_a_master_is_that_of_evaluation_too_unless_there_is_another():
    config = tpu.RunConfig(master="grpc://a")
    assert (config.master, config.evaluation_master) == ("grpc://a",) * 2
    config = tpu.RunConfig(master="grpc://a", evaluation_master="")
    assert config.evaluation_master == ""


def test_a_cluster_gives_the_master_and_the_session_its_jobs():
    config = tpu.RunConfig(cluster=Resolver())

    assert config.master == "grpc://10.0.0.2:8470"
    assert config.session_config.allow_soft_placement
    assert [job.name for job in config.session_config.cluster_def.job] == [
        "worker"
    ]


def test_a_master_beside_a_cluster_is_refused():
    with pytest.raises(errors.ArgumentError, match="Both master and cluster"):
        tpu.RunConfig(master="grpc://a", cluster=Resolver())


def test_a_cluster_beside_one_in_the_session_config_is_refused():
    session_config = tf.compat.v1.ConfigProto()
    session_config.cluster_def.job.add(name="worker")
    with pytest.raises(errors.ArgumentError, match="ClusterResolver and"):
        tpu.RunConfig(cluster=Resolver(), session_config=session_config)


def test_the_environment_names_the_job_of_tpu_workers(monkeypatch):
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"service": {"tpu_worker_job_name": "pod"}})
    )
    assert tpu.TPUConfig().tpu_job_name == "pod"
    assert tpu.TPUConfig(tpu_job_name="mine").tpu_job_name == "mine"


def test_a_worker_of_a_cluster_has_no_device_filters(monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    monkeypatch.setenv(
        "TF_CONFIG",
        json.dumps(
            {"cluster": cluster, "task": {"type": "worker", "index": 0}}
        ),
    )
    assert tpu.RunConfig().session_config is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("initial_infeed_sleep_secs", 3), ("experimental_feed_hook", object)],
)
def test_settings_of_infeed_threads_are_said_to_have_no_effect(
    caplog, field, value
):
    with caplog.at_level("WARNING", "tensorflow"):
        config = tpu.TPUConfig(**{field: value})

    assert getattr(config, field) == value
    assert f"{field}=" in caplog.text
    assert "has no effect" in caplog.text


def test_one_shard_says_that_no_tpu_is_looked_for(caplog):
    config = tpu.RunConfig(tpu_config=tpu.TPUConfig(num_shards=1))
    with caplog.at_level("INFO", "tensorflow"):
        system = context.find_system(config, "")

    assert system.num_cores == 1
    assert "no TPU is looked for" in caplog.text
