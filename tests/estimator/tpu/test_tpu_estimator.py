"""TPUEstimator: training, evaluation and prediction, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.tpu import replica_model
from tests.estimator.tpu.replica_model import X, Y
from tfembed import errors, estimator
from tfembed.estimator import ModeKeys, tpu

v1 = tf.compat.v1
PIPELINES = tpu.InputPipelineConfig


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("TFEMBED_SIMULATED_CORES", raising=False)
    monkeypatch.delenv("TFEMBED_SIMULATED_HOSTS", raising=False)


@pytest.mark.parametrize("replicas", [0, 1, 2, 8])
def test_replicas_train_what_one_would(tmp_path, replicas):
    model = replica_model.make(tmp_path, replicas)
    assert isinstance(model, estimator.Estimator)

    assert model.train(replica_model.train_fn, steps=10) is model

    weight, bias = replica_model.trained(10)
    np.testing.assert_allclose(
        model.get_variable_value("w"), weight, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        model.get_variable_value("b"), bias, rtol=1e-5, atol=1e-6
    )
    assert model.get_variable_value("global_step") == 10


@pytest.mark.parametrize(
    "pipeline, input_fn",
    [
        (PIPELINES.PER_SHARD_V1, replica_model.tensors_fn),
        (PIPELINES.PER_HOST_V1, replica_model.tensors_fn),
        (PIPELINES.PER_HOST_V2, replica_model.train_fn),
        (PIPELINES.BROADCAST, replica_model.train_fn),
    ],
)
def test_every_input_pipeline_trains(tmp_path, pipeline, input_fn):
    model = replica_model.make(
        tmp_path, tpu_config={"per_host_input_for_training": pipeline}
    )
    model.train(input_fn, steps=5)

    if pipeline == PIPELINES.PER_SHARD_V1:
        return  # Each replica reads the data from its start.
    weight, _ = replica_model.trained(5)
    np.testing.assert_allclose(
        model.get_variable_value("w"), weight, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("replicas", [0, 1, 2, 8])
@pytest.mark.parametrize("rows", [64, 61, 7])
def test_an_evaluation_without_steps_sees_all_rows_once(
    tmp_path, replicas, rows
):
    model = replica_model.make(tmp_path, replicas)
    model.train(replica_model.train_fn, steps=3)
    weight, bias = replica_model.trained(3)

    results = model.evaluate(replica_model.some(rows))

    error = np.abs(X[:rows] @ weight + bias - Y[:rows]).mean()
    np.testing.assert_allclose(results["mae"], error, rtol=1e-5)
    assert results["global_step"] == 3


@pytest.mark.parametrize("replicas", [0, 1, 2, 4])
def test_predictions_are_those_of_all_rows_in_order(tmp_path, replicas):
    model = replica_model.make(tmp_path, replicas)
    model.train(replica_model.train_fn, steps=3)
    weight, bias = replica_model.trained(3)

    found = [p["y"] for p in model.predict(replica_model.some(45))]

    np.testing.assert_allclose(
        found, X[:45] @ weight + bias, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    "pipeline", [PIPELINES.PER_HOST_V2, PIPELINES.BROADCAST]
)
@pytest.mark.parametrize("rows", [64, 45, 5])
def test_other_pipelines_evaluate_and_predict_all_rows(
    tmp_path, pipeline, rows
):
    model = replica_model.make(
        tmp_path, tpu_config={"per_host_input_for_training": pipeline}
    )
    model.train(replica_model.train_fn, steps=3)
    weight, bias = replica_model.trained(3)
    expected = X[:rows] @ weight + bias

    results = model.evaluate(replica_model.some(rows))
    found = [p["y"] for p in model.predict(replica_model.some(rows))]

    np.testing.assert_allclose(
        results["mae"], np.abs(expected - Y[:rows]).mean(), rtol=1e-5
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_an_evaluation_by_slices_calls_input_fn_once(tmp_path):
    model = replica_model.make(
        tmp_path,
        tpu_config={"eval_training_input_configuration": PIPELINES.SLICED},
    )
    calls = []

    def input_fn(params):
        calls.append(params["batch_size"])
        return replica_model.some(50)(params)

    results = model.evaluate(input_fn)

    assert calls == [16]
    np.testing.assert_allclose(results["mae"], np.abs(Y[:50]).mean(), rtol=1e-5)


def test_several_hosts_train_and_evaluate(tmp_path, monkeypatch):
    monkeypatch.setenv("TFEMBED_SIMULATED_CORES", "4")
    monkeypatch.setenv("TFEMBED_SIMULATED_HOSTS", "2")
    model = replica_model.make(
        tmp_path, 4, tpu_config={"per_host_input_for_training": 3}
    )
    calls = []

    def input_fn(params):
        call = params["context"].current_input_fn_deployment()
        calls.append((call, params["batch_size"], params["context"].num_hosts))
        shard = tf.data.Dataset.from_tensor_slices(({"x": X}, Y))
        shard = shard.shard(call[2], call[1])
        return shard.repeat().batch(params["batch_size"], drop_remainder=True)

    model.train(input_fn, steps=2)
    results = model.evaluate(input_fn, steps=8)

    device = "/replica:0/task:0/device:CPU:0"
    assert calls[:2] == [((device, i, 2, 2), 4, 2) for i in range(2)]
    weight = model.get_variable_value("w")
    bias = model.get_variable_value("b")
    error = np.abs(X @ weight + bias - Y).mean()
    np.testing.assert_allclose(results["mae"], error, rtol=1e-5)


def test_two_runs_give_bitwise_the_same_weights(tmp_path):
    found = []
    for run in range(2):
        model = replica_model.make(tmp_path / str(run), 4)
        model.train(replica_model.train_fn, steps=7)
        found.append(model.get_variable_value("w"))

    assert found[0].tobytes() == found[1].tobytes()


class Steps(v1.train.SessionRunHook):
    """Notes the global step after each run."""

    def __init__(self):
        self.steps = []
        self.began = self.ended = False

    def begin(self):
        self.began = True

    def after_run(self, run_context, run_values):
        step = run_context.session.run(v1.train.get_global_step())
        self.steps.append(int(step))

    def end(self, session):
        self.ended = True


@pytest.mark.parametrize(
    "iterations, limits, steps",
    [
        (4, {"steps": 10}, [4, 8, 10]),
        (4, {"steps": 8}, [4, 8]),
        (40, {"max_steps": 12}, [12]),
    ],
)
def test_hooks_see_one_run_per_loop(tmp_path, iterations, limits, steps):
    model = replica_model.make(tmp_path, iterations=iterations)
    hook = Steps()

    model.train(replica_model.train_fn, hooks=[hook], **limits)

    assert hook.steps == steps
    assert hook.began
    assert hook.ended


def test_training_goes_on_from_the_last_checkpoint(tmp_path):
    model = replica_model.make(tmp_path, iterations=4)
    hook = Steps()
    model.train(replica_model.train_fn, steps=3)
    model.train(replica_model.train_fn, max_steps=10, hooks=[hook])

    assert hook.steps == [7, 10]
    again = Steps()
    model.train(replica_model.train_fn, max_steps=10, hooks=[again])
    assert not again.began


def test_loops_of_a_time_grow_until_they_take_it(tmp_path):
    model = replica_model.make(tmp_path, iterations="1s")
    hook = Steps()
    model.train(replica_model.train_fn, hooks=[hook], steps=60)

    assert hook.steps[0] == 1
    assert hook.steps[-1] == 60
    assert len(hook.steps) < 60


def test_an_evaluation_of_steps_is_one_run(tmp_path):
    model = replica_model.make(tmp_path)
    hook = Steps()
    model.evaluate(replica_model.train_fn, steps=5, hooks=[hook])

    assert len(hook.steps) == 1


def test_hooks_of_a_spec_run_in_their_mode(tmp_path):
    hooks = {mode: Steps() for mode in ("train", "eval", "infer")}

    def model_fn(features, labels, mode, params):
        spec = replica_model.model_fn(features, labels, mode, params)
        return spec._replace(
            training_hooks=[hooks["train"]],
            evaluation_hooks=[hooks["eval"]],
            prediction_hooks=[hooks["infer"]],
        )

    model = replica_model.make(tmp_path, model=model_fn)
    model.train(replica_model.train_fn, steps=1)
    model.evaluate(replica_model.train_fn, steps=1)
    list(model.predict(replica_model.some(20)))

    assert all(hook.ended for hook in hooks.values())


def test_a_model_fn_is_called_once_and_told_where_it_runs(tmp_path):
    told = []

    def model_fn(features, labels, mode, params, config):
        told.append((mode, params["batch_size"], params["use_tpu"]))
        assert params["context"].num_replicas == (4 if params["use_tpu"] else 1)
        assert params["mine"] == 5
        assert config.model_dir == str(tmp_path)
        assert features["x"].shape[0] in (4, 16, None)
        return replica_model.model_fn(features, labels, mode, params)

    params = {"mine": 5}
    model = replica_model.make(tmp_path, 4, model=model_fn, params=params)
    model.train(replica_model.train_fn, steps=2)
    model.evaluate(replica_model.train_fn, steps=2)
    list(model.predict(replica_model.some(20)))
    assert told == [(mode, 4, True) for mode in ("train", "eval", "infer")]
    assert params == {"mine": 5}

    told.clear()
    model = replica_model.make(tmp_path, 0, model=model_fn, params=params)
    model.train(replica_model.train_fn, steps=2)
    assert told == [("train", 16, False)]


def test_an_input_fn_gets_mode_config_and_a_context(tmp_path):
    told = []

    def input_fn(params, mode, config):
        context = params["context"]
        told.append(
            (mode, config.model_dir, context.current_input_fn_deployment()[1:])
        )
        return replica_model.train_fn(params)

    replica_model.make(tmp_path, 2).train(input_fn, steps=1)
    replica_model.make(tmp_path, 0).train(input_fn, steps=1)

    assert told == [
        ("train", str(tmp_path), (0, 1, 2)),
        ("train", str(tmp_path), (0, 1, 1)),
    ]


def test_checkpoints_go_from_replicas_to_the_cpu_and_back(tmp_path):
    replica_model.make(tmp_path, 4).train(replica_model.train_fn, steps=3)
    replica_model.make(tmp_path, 0).train(replica_model.train_fn, steps=2)
    names = replica_model.make(tmp_path, 0).get_variable_names()
    model = replica_model.make(tmp_path, 2)
    model.train(replica_model.train_fn, steps=1)

    assert model.get_variable_value("global_step") == 6
    assert model.get_variable_names() == names == ["b", "global_step", "w"]


def test_an_evaluation_on_the_cpu_takes_a_spec_of_the_cpu(tmp_path):
    def model_fn(features, labels, mode, params):
        if mode == ModeKeys.EVAL:
            assert not params["use_tpu"]
            predictions = replica_model.linear(features)
            return estimator.EstimatorSpec(
                mode,
                loss=tf.reduce_mean(predictions),
                eval_metric_ops=replica_model.absolute_error(
                    labels, predictions
                ),
            )
        return replica_model.model_fn(features, labels, mode, params)

    model = replica_model.make(tmp_path, model=model_fn, eval_on_tpu=False)
    model.train(replica_model.train_fn, steps=2)
    assert "mae" in model.evaluate(replica_model.some(20))

    model = replica_model.make(tmp_path, model=model_fn, eval_on_tpu=True)
    with pytest.raises((errors.StateError, AssertionError)):
        model.evaluate(replica_model.some(20))


# Arguments of host functions may be nested: of eval_metrics and host_call, by
# position and by name, on replicas and on a CPU, in all modes. Looked at too:
# predictions, which Estimator allows as a dict or a tensor alone.


@pytest.mark.parametrize("replicas", [0, 2])
@pytest.mark.parametrize("by_name", [False, True])
def test_functions_of_the_host_take_nested_structures(
    tmp_path, by_name, replicas
):
    seen = []

    def metric_fn(given):
        difference = given["b"][0] - given["a"]
        return {"mean": v1.metrics.mean(difference)}

    def host_fn(given):
        return tf.numpy_function(
            lambda *x: seen.append([len(x[0]), len(x[1])]),
            [given["a"], given["b"][0]],
            [],
        )

    def model_fn(features, labels, mode, params):
        spec = replica_model.model_fn(features, labels, mode, params)
        nested = {"a": features["x"][:, :1], "b": (labels,)}
        given = {"given": nested} if by_name else [nested]
        return spec._replace(
            eval_metrics=(metric_fn, given), host_call=(host_fn, given)
        )

    model = replica_model.make(tmp_path, replicas, model=model_fn, iterations=1)
    model.train(replica_model.train_fn, steps=2)
    found = model.evaluate(replica_model.some(21))["mean"]

    expected = (Y[:21] - X[:21, :1]).mean()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert seen == [[16, 16]] * 3 + [[5, 5]]
