"""Batch maths, systems and contexts."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfembed import errors
from tfembed.estimator import tpu
from tfembed.estimator.tpu import context
from tfembed.estimator.tpu.context import BatchPlan

V1_SHARD, V1, V2, BROADCAST, SLICED = 1, 2, 3, 4, 5
B, H, R = 96, 2, 8


@pytest.mark.parametrize(
    "pipeline, calls, fed, input_size, model_size",
    [
        (None, 1, R, B, B),
        (V1_SHARD, R, 1, B // R, B // R),
        (V1, H, R // H, B // H, B // R),
        (V2, H, R // H, B // R, B // R),
        (BROADCAST, 1, R, B, B),
        (SLICED, 1, R, B, B // R),
    ],
)
def test_who_gets_how_much(pipeline, calls, fed, input_size, model_size):
    plan = BatchPlan("train", pipeline, B, H, R)

    assert plan.num_invocations == calls
    assert plan.replicas_per_invocation == fed
    assert plan.input_fn_batch_size == input_size
    assert plan.model_fn_batch_size == model_size


@pytest.mark.parametrize("pipeline", [V1, V2])
def test_a_replica_on_several_hosts_has_a_call_of_its_own(pipeline):
    plan = BatchPlan("train", pipeline, B, 8, 2, is_replica_across_hosts=True)

    assert plan.num_invocations == 2
    assert plan.input_fn_batch_size == B // 2
    assert plan.num_of_replicas_per_host == 0


def test_a_mode_without_a_batch_size_gives_none_to_functions():
    plan = BatchPlan("infer", None, None)
    assert plan.input_fn_batch_size is None
    assert plan.model_fn_batch_size is None
    plan.check()


@pytest.mark.parametrize(
    "mode, name", [("train", "train"), ("eval", "eval"), ("infer", "predict")]
)
@pytest.mark.parametrize("pipeline", [V1, V2])
def test_a_batch_that_cannot_be_dealt_evenly_is_refused(mode, name, pipeline):
    with pytest.raises(
        errors.ArgumentError, match=f"{name} batch size 97 must be divisible"
    ):
        BatchPlan(mode, pipeline, 97, 1, R).check()


@pytest.mark.parametrize("pipeline", [BROADCAST, SLICED])
def test_a_batch_that_is_not_dealt_may_have_any_size(pipeline):
    BatchPlan("eval", pipeline, 97, 1, R).check()


@pytest.mark.parametrize(
    "mode, name, method",
    [
        ("train", "train", "train"),
        ("eval", "eval", "evaluate"),
        ("infer", "predict", "predict"),
    ],
)
def test_a_mode_on_replicas_needs_its_batch_size(mode, name, method):
    with pytest.raises(
        errors.ArgumentError,
        match=rf"{name}_batch_size in .* cannot be `None` if \.{method}",
    ):
        BatchPlan(mode, V1, None, 1, R).check()


@pytest.mark.parametrize(
    "mode, pipeline, replicas, allowed",
    [
        ("train", V1, 8, True),
        ("eval", V1, 8, False),
        ("eval", V2, 8, True),
        ("eval", BROADCAST, 8, True),
        ("infer", V1, 8, False),
        ("infer", V2, 8, False),
        ("infer", V2, 1, True),
        ("infer", BROADCAST, 8, True),
    ],
)
def test_several_hosts_evaluate_and_predict_in_some_modes(
    mode, pipeline, replicas, allowed
):
    plan = BatchPlan(mode, pipeline, 96, 2, replicas)
    if allowed:
        plan.check()
        return
    with pytest.raises(errors.ArgumentError, match="under three conditions"):
        plan.check()


def test_a_pipeline_in_force_depends_on_the_mode():
    shards = tpu.TPUConfig(per_host_input_for_training=False)
    sliced = tpu.TPUConfig(eval_training_input_configuration=SLICED)

    assert context.pipeline_in_mode(shards, "train") == V1_SHARD
    assert context.pipeline_in_mode(shards, "eval") == V1
    assert context.pipeline_in_mode(sliced, "train") == V1
    assert context.pipeline_in_mode(sliced, "infer") == SLICED


def test_replicas_are_cores_or_groups_of_cores():
    assert context.count_replicas(8, None) == 8
    assert context.count_replicas(8, 2) == 4
    with pytest.raises(errors.ArgumentError, match="larger than the total"):
        context.count_replicas(8, 16)
    with pytest.raises(errors.StateError, match="is not divisible"):
        context.count_replicas(6, 4)


def make(mode="train", size=B, master="", **options):
    config = tpu.RunConfig(master=master, tpu_config=tpu.TPUConfig(**options))
    return context.DeploymentContext(
        config, batch_sizes={mode: size}, use_tpu=True, eval_on_tpu=True
    ).in_mode(mode)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv(context.SIMULATED_CORES, raising=False)
    monkeypatch.delenv(context.SIMULATED_HOSTS, raising=False)


def test_without_a_tpu_one_core_is_simulated():
    found = make().system
    assert (found.num_cores, found.num_hosts) == (1, 1)
    assert found.is_simulated
    assert not found.is_strict


def test_num_shards_says_how_many_replicas_are_simulated():
    assert make(num_shards=4).num_replicas == 4
    assert make(num_shards=4, num_cores_per_replica=2).system.num_cores == 8


def test_the_environment_says_how_many_cores_and_hosts(monkeypatch):
    monkeypatch.setenv(context.SIMULATED_CORES, "8")
    monkeypatch.setenv(context.SIMULATED_HOSTS, "2")

    plan = make().plan
    assert (plan.num_replicas, plan.num_hosts) == (8, 2)


@pytest.mark.parametrize("text", ["many", "0", "-2", "1.5"])
def test_an_environment_variable_that_is_no_number_is_named(monkeypatch, text):
    monkeypatch.setenv(context.SIMULATED_CORES, text)
    with pytest.raises(errors.ArgumentError, match="TFEMBED_SIMULATED_CORES"):
        _ = make().system


def test_cores_that_hosts_cannot_share_are_refused(monkeypatch):
    monkeypatch.setenv(context.SIMULATED_CORES, "3")
    monkeypatch.setenv(context.SIMULATED_HOSTS, "2")
    with pytest.raises(errors.ArgumentError, match="3 simulated cores"):
        _ = make().system


@pytest.mark.parametrize("num_shards", [None, 1])
def test_a_required_tpu_that_is_not_there_is_an_error(num_shards):
    config = tpu.RunConfig(
        require_tpu=True, tpu_config=tpu.TPUConfig(num_shards=num_shards)
    )
    with pytest.raises(errors.StateError, match="Cannot find any TPU cores"):
        context.find_system(config, "")


def test_a_wrong_number_of_shards_is_refused(monkeypatch):
    monkeypatch.setenv(context.SIMULATED_CORES, "2")
    with pytest.raises(errors.ArgumentError, match="num_shards is not set"):
        make(num_shards=16).validate()


def test_a_replica_larger_than_a_host_needs_per_host_v2(monkeypatch):
    monkeypatch.setenv(context.SIMULATED_CORES, "32")
    monkeypatch.setenv(context.SIMULATED_HOSTS, "4")
    with pytest.raises(errors.ArgumentError, match="Except the PER_HOST_V2"):
        make(num_cores_per_replica=16).validate()
    across = make(num_cores_per_replica=16, per_host_input_for_training=3)
    across.validate()
    assert [across.host_of_replica(i) for i in range(2)] == [0, 2]


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 16])
def test_simulated_cores_of_a_replica_lie_beside_each_other(cores):
    found = make(num_shards=2, num_cores_per_replica=cores)
    assignment = found.device_assignment

    assert isinstance(assignment, tf.tpu.experimental.DeviceAssignment)
    assert assignment.num_replicas == 2
    assert assignment.num_cores_per_replica == cores


def test_devices_of_replicas_name_their_host(monkeypatch):
    assert make(num_shards=2).device_for_replica(1) == (
        "/task:0/device:CPU:0",
        1,
    )
    monkeypatch.setenv(context.SIMULATED_CORES, "8")
    monkeypatch.setenv(context.SIMULATED_HOSTS, "2")
    assert make().device_for_replica(5) == ("/task:1/device:CPU:0", 1)
    assert make().host_device(1) == "/replica:0/task:0/device:CPU:0"


def test_a_remote_master_has_a_job():
    remote = make(master="grpc://10.0.0.2:8470")
    assert remote.master_job == "tpu_worker"
    assert remote.host_device(3) == "/job:tpu_worker/task:3/device:CPU:0"


def test_the_name_of_a_job_is_that_of_a_tpus_hosts(monkeypatch, caplog):
    with caplog.at_level("INFO", "tensorflow"):
        simulated = make(tpu_job_name="mine", num_shards=2)
        assert simulated.host_device(0) == "/replica:0/task:0/device:CPU:0"
        assert simulated.device_for_replica(1)[0] == "/task:0/device:CPU:0"
    assert caplog.text.count("tpu_job_name='mine') is ignored") == 1

    monkeypatch.setattr(
        context,
        "find_system",
        lambda config, master: context.TPUSystem(2, 1, 2),
    )
    assert make(tpu_job_name="mine").master_job == "mine"


def test_a_cluster_whose_job_cannot_be_told_asks_for_its_name():
    session_config = tf.compat.v1.ConfigProto()
    for name in ("worker", "other"):
        session_config.cluster_def.job.add(name=name)
    config = tpu.RunConfig(master="grpc://a", session_config=session_config)
    found = context.DeploymentContext(
        config, batch_sizes={}, use_tpu=True, eval_on_tpu=True
    ).in_mode("train")
    with pytest.raises(errors.ArgumentError, match="specify a tpu_job_name"):
        _ = found.master_job


def test_a_context_of_an_input_fn_knows_its_call(monkeypatch):
    monkeypatch.setenv(context.SIMULATED_CORES, "8")
    monkeypatch.setenv(context.SIMULATED_HOSTS, "2")
    found = tpu_context = context.TPUContext(
        make(), context.Invocation("/cpu:0", 1, 1)
    )

    assert found.current_input_fn_deployment() == ("/cpu:0", 1, 2, 4)
    assert found.current_host == 1
    assert (found.num_replicas, found.num_hosts) == (8, 2)
    assert found.num_of_replicas_per_host == 4
    assert found.tpu_host_placement_function(0).endswith("device:CPU:0")
    with pytest.raises(errors.StateError, match="called from input_fn"):
        _ = tpu_context.device_assignment


def test_a_context_of_a_model_fn_knows_cores_and_no_call():
    found = context.TPUContext(make(num_shards=2, num_cores_per_replica=2))

    assert found.device_assignment.num_replicas == 2
    with pytest.raises(errors.StateError, match="called from model_fn"):
        found.current_input_fn_deployment()
    with pytest.raises(errors.StateError, match="called from model_fn"):
        _ = found.current_host
    with pytest.raises(errors.ArgumentError, match="not supported for model"):
        _ = found.num_of_replicas_per_host


def test_a_context_on_a_cpu_has_one_host_and_one_replica():
    config = tpu.RunConfig(tpu_config=tpu.TPUConfig(num_shards=8))
    found = context.TPUContext(
        context.DeploymentContext(
            config, batch_sizes={}, use_tpu=False, eval_on_tpu=True
        ).in_mode("train")
    )
    assert (found.num_replicas, found.num_hosts) == (1, 1)
    assert found.num_of_replicas_per_host == 1
    assert found.device_assignment is None


def test_an_evaluation_may_stay_on_the_cpu():
    deployment = context.DeploymentContext(
        tpu.RunConfig(), batch_sizes={}, use_tpu=True, eval_on_tpu=False
    )
    assert deployment.in_mode("eval").is_running_on_cpu
    assert not deployment.in_mode("train").is_running_on_cpu
