"""What users of the old TPUEstimator complained of, row by row."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2

from tests.estimator.tpu import replica_model
from tests.estimator.tpu.replica_model import X, Y
from tfembed import errors, estimator
from tfembed.estimator import ModeKeys, tpu

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("TFEMBED_SIMULATED_CORES", raising=False)
    monkeypatch.delenv("TFEMBED_SIMULATED_HOSTS", raising=False)


@pytest.fixture
def lines(caplog):
    """What TensorFlow's logger says, as a function."""
    logger = (
        v1.logging._get_logger()
        if hasattr(v1.logging, "_get_logger")
        else (tf.get_logger())
    )
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = True
    yield lambda: [record.getMessage() for record in caplog.records]
    logger.setLevel(level)
    logger.propagate = propagate


def model_of(make_spec):
    """A model_fn that makes its spec of predictions, loss and a train_op."""

    def model_fn(features, labels, mode, params):
        predictions = replica_model.linear(features)
        loss = train_op = None
        if mode != ModeKeys.PREDICT:
            loss = tf.reduce_mean((predictions - labels) ** 2)
        if mode == ModeKeys.TRAIN:
            train_op = replica_model.minimize(loss, params)
        return make_spec(mode, features, labels, predictions, loss, train_op)

    return model_fn


def events(folder):
    """All scalar summaries in a folder's event files, by tag."""
    found = {}
    for path in sorted(folder.glob("events*")):
        for record in v1.io.tf_record_iterator(str(path)):
            event = event_pb2.Event.FromString(record)
            for value in event.summary.value:
                number = (
                    value.simple_value
                    if value.HasField("simple_value")
                    else np.ravel(tf.make_ndarray(value.tensor))[0]
                )
                found.setdefault(value.tag, []).append((event.step, number))
    return found


def test_cross_shard_optimizer_trains_on_a_cpu(tmp_path):
    def model_fn(features, labels, mode, params):
        return replica_model.model_fn(
            features, labels, mode, {**params, "use_tpu": True}
        )

    model = replica_model.make(tmp_path, 0, model=model_fn)
    model.train(replica_model.train_fn, steps=4)

    weight, _ = replica_model.trained(4)
    np.testing.assert_allclose(
        model.get_variable_value("w"), weight, rtol=1e-5, atol=1e-6
    )


def test_a_model_that_sums_by_itself_needs_no_cross_shard_optimizer(tmp_path):
    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean((replica_model.linear(features) - labels) ** 2)
        optimizer = v1.train.GradientDescentOptimizer(replica_model.RATE)
        pairs = [
            (v1.tpu.cross_replica_sum(gradient) / 2, variable)
            for gradient, variable in optimizer.compute_gradients(loss)
        ]
        step = v1.train.get_global_step()
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=optimizer.apply_gradients(pairs, step)
        )

    model = replica_model.make(tmp_path, model=model_fn)
    model.train(replica_model.train_fn, steps=4)

    weight, _ = replica_model.trained(4)
    np.testing.assert_allclose(
        model.get_variable_value("w"), weight, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("end", ["close", "drop", "error", "exhaust"])
def test_a_second_prediction_runs_after_the_first_has_ended(tmp_path, end):
    model = replica_model.make(tmp_path)
    first = model.predict(replica_model.some(40))
    next(first)
    if end == "close":
        first.close()
    elif end == "drop":
        del first
    elif end == "error":
        with pytest.raises(ZeroDivisionError):
            first.throw(ZeroDivisionError)
    else:
        assert len(list(first)) == 39

    assert len(list(model.predict(replica_model.some(20)))) == 20


def test_two_predictions_at_a_time_are_refused(tmp_path):
    model = replica_model.make(tmp_path)
    first = model.predict(replica_model.some(40))
    next(first)
    with pytest.raises(errors.StateError, match="has not ended"):
        next(model.predict(replica_model.some(40)))
    assert len(list(first)) == 39


def test_prediction_needs_no_train_batch_size(tmp_path):
    model = replica_model.make(
        tmp_path, train_batch_size=None, eval_batch_size=None
    )
    assert len(list(model.predict(replica_model.some(20)))) == 20


class Runs(v1.train.SessionRunHook):
    def __init__(self):
        self.runs = 0

    def after_run(self, run_context, run_values):
        self.runs += 1


@pytest.mark.parametrize("iterations, runs", [(1, 7), (3, 3)])
def test_prediction_returns_to_hooks_once_in_a_loop(tmp_path, iterations, runs):
    model = replica_model.make(tmp_path, iterations=iterations, batch=8)
    hook = Runs()
    found = list(model.predict(replica_model.some(50), hooks=[hook]))

    assert len(found) == 50
    assert runs <= hook.runs <= runs + 1


@pytest.mark.parametrize("replicas", [0, 2])
def test_a_loss_that_weighs_padding_is_the_mean_over_all_rows(
    tmp_path, replicas
):
    def make_spec(mode, features, labels, predictions, loss, train_op):
        real = 1.0 - tf.cast(features["is_padding"], tf.float32)
        errors_of_rows = tf.reduce_sum((predictions - labels) ** 2, 1)
        loss = tf.reduce_sum(real * errors_of_rows) / tf.reduce_sum(real)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    model = replica_model.make(
        tmp_path, replicas, model=model_of(make_spec), batch=4
    )
    rows = 61 if replicas else 60  # On a CPU batches count the same.
    results = model.evaluate(replica_model.some(rows))

    np.testing.assert_allclose(
        results["loss"], (Y[:rows] ** 2).mean(), rtol=1e-5
    )


def test_metrics_of_several_values_a_row_leave_padding_out(tmp_path):
    def make_spec(mode, features, labels, predictions, loss, train_op):
        values = tf.reshape(features["x"], [-1])
        return tpu.TPUEstimatorSpec(
            mode,
            loss=loss,
            eval_metrics=(
                lambda values: {"mean": v1.metrics.mean(values)},
                {"values": values},
            ),
        )

    model = replica_model.make(tmp_path, model=model_of(make_spec))
    results = model.evaluate(replica_model.some(37))

    np.testing.assert_allclose(results["mean"], X[:37].mean(), rtol=1e-4)


@pytest.mark.parametrize("replicas", [0, 2])
def test_predictions_may_be_a_tensor(tmp_path, replicas):
    def make_spec(mode, features, labels, predictions, loss, train_op):
        return tpu.TPUEstimatorSpec(mode, predictions=2 * predictions + 1)

    model = replica_model.make(tmp_path, replicas, model=model_of(make_spec))
    found = list(model.predict(replica_model.some(21)))

    np.testing.assert_array_equal(found, np.ones([21, 1]))


@pytest.mark.parametrize("replicas", [0, 2])
def test_summaries_of_a_model_fn_are_written(tmp_path, replicas):
    def make_spec(mode, features, labels, predictions, loss, train_op):
        v1.summary.scalar("old", loss)
        tf.summary.scalar("new", loss)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    model = replica_model.make(
        tmp_path,
        replicas,
        model=model_of(make_spec),
        run_config={"save_summary_steps": 2},
    )
    model.train(replica_model.train_fn, steps=8)

    found = events(tmp_path)
    assert [step for step, _ in found["new"]] == [0, 2, 4, 6]
    assert found["new"][0][1] > found["new"][-1][1] > 0
    assert found["old"]
    assert found["loss"]


def test_training_logs_loss_step_of_all_steps_and_examples(tmp_path, lines):
    model = replica_model.make(
        tmp_path, iterations=4, run_config={"log_step_count_steps": 6}
    )
    model.train(replica_model.train_fn, steps=20)

    said = [line for line in lines() if line.startswith("loss = ")]
    assert [line.split(" (")[0].split("step = ")[1] for line in said] == [
        "4 of 20",
        "12 of 20",
        "20 of 20",
    ]
    assert "examples/sec" in said[-1]


def test_the_end_of_the_input_ends_training(tmp_path, lines):
    model = replica_model.make(
        tmp_path, iterations=3, run_config={"log_step_count_steps": 1}
    )
    model.train(replica_model.some(64), steps=50)

    assert model.get_variable_value("global_step") == 4
    weight, _ = replica_model.trained(4)
    np.testing.assert_allclose(
        model.get_variable_value("w"), weight, rtol=1e-5, atol=1e-6
    )
    assert any("step 4, before step 50" in line for line in lines())


@pytest.mark.parametrize("replicas", [0, 1, 2])
def test_a_step_without_input_is_not_counted(tmp_path, replicas):
    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean((replica_model.linear(features) - labels) ** 2)
        step = v1.train.get_global_step()
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        if params["use_tpu"]:
            optimizer = v1.tpu.CrossShardOptimizer(optimizer)
        # BERT counts by itself, with an op that needs no batch.
        train_op = tf.group(optimizer.minimize(loss), step.assign(step + 1))
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    model = replica_model.make(tmp_path, replicas, model=model_fn)
    model.train(replica_model.some(48), max_steps=100)

    assert model.get_variable_value("global_step") == 3


def test_an_error_of_the_input_is_the_one_that_is_shown(tmp_path):
    def broken(params):
        data = replica_model.train_fn(params)

        def check(x, y):
            with tf.control_dependencies(
                [tf.debugging.Assert(False, ["bad row"])]
            ):
                return x, tf.identity(y)

        return data.map(check)

    with pytest.raises(tf.errors.InvalidArgumentError, match="bad row"):
        replica_model.make(tmp_path).train(broken, steps=4)


def with_names(rows):
    names = [f"row {i}" for i in range(rows)]

    def input_fn(params):
        data = tf.data.Dataset.from_tensor_slices(
            ({"x": X[:rows], "name": names}, Y[:rows])
        )
        return data.batch(params["batch_size"])

    return input_fn


def test_a_feature_of_strings_is_named(tmp_path):
    model = replica_model.make(tmp_path)
    with pytest.raises(
        errors.DtypeError, match=r"'name' given by input_fn .*host_features"
    ):
        next(model.predict(with_names(20)))


@pytest.mark.parametrize("form", ["list", "dict"])
@pytest.mark.parametrize("replicas", [0, 2])
def test_features_of_the_host_reach_predictions_and_metrics(
    tmp_path, replicas, form
):
    def metric_fn(name, labels):
        count = tf.cast(tf.size(tf.unique(name)[0]), tf.float32)
        return {"names": v1.metrics.mean(count), "y": v1.metrics.mean(labels)}

    def make_spec(mode, features, labels, predictions, loss, train_op):
        assert list(features) == ["x"]
        tensors = {"dict": {"labels": labels}, "list": [labels]}[form]
        metrics = None if labels is None else (metric_fn, tensors)
        return tpu.TPUEstimatorSpec(
            mode,
            loss=loss,
            predictions={"y": predictions},
            eval_metrics=metrics,
        )

    model = replica_model.make(
        tmp_path,
        replicas,
        model=model_of(make_spec),
        host_features=["name"],
    )
    found = [p["name"].decode() for p in model.predict(with_names(21))]
    results = model.evaluate(with_names(32))

    assert found == [f"row {i}" for i in range(21)]
    assert results["names"] == 16


@pytest.mark.parametrize("replicas", [0, 2])
def test_a_host_call_in_list_form_gets_features_of_the_host(tmp_path, replicas):
    seen = []

    def host_call(labels, name):
        return tf.numpy_function(
            lambda labels, names: seen.append((len(labels), names[0])),
            [labels, name],
            [],
        )

    def make_spec(mode, features, labels, predictions, loss, train_op):
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=train_op, host_call=(host_call, [labels])
        )

    model = replica_model.make(
        tmp_path, replicas, model=model_of(make_spec), host_features=["name"]
    )
    model.train(with_names(32), steps=2)

    assert seen == [(16, b"row 0"), (16, b"row 16")]


def test_a_function_that_lacks_a_tensor_names_the_features_of_the_host(
    tmp_path,
):
    def make_spec(mode, features, labels, predictions, loss, train_op):
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(lambda x, y, name: {}, [labels])
        )

    model = replica_model.make(
        tmp_path, model=model_of(make_spec), host_features=["name"]
    )
    with pytest.raises(
        errors.StateError, match=r"length of tensors 1 .*takes 3.*\['name'\]"
    ):
        model.evaluate(with_names(32))


def test_a_feature_of_the_host_that_is_not_there_is_named(tmp_path):
    model = replica_model.make(tmp_path, host_features=["title"])
    with pytest.raises(errors.ArgumentError, match="title"):
        next(model.predict(replica_model.some(20)))


def test_host_calls_run_every_n_steps_of_a_loop(tmp_path):
    def host_call(step):
        writer = tf.summary.create_file_writer(
            str(tmp_path / "host"), name=tmp_path.name
        )
        with writer.as_default(), tf.summary.record_if(True):
            tf.summary.scalar("step", step[0], step=step[0])
        return v1.summary.all_v2_summary_ops()

    def make_spec(mode, features, labels, predictions, loss, train_op):
        step = tf.reshape(v1.train.get_global_step(), [1])
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=train_op, host_call=(host_call, [step])
        )

    model = replica_model.make(
        tmp_path,
        iterations=5,
        model=model_of(make_spec),
        tpu_config={"experimental_host_call_every_n_steps": 2},
    )
    model.train(replica_model.train_fn, steps=10)

    found = events(tmp_path / "host")["step"]
    assert [step for step, _ in found] == [0, 2, 4, 5, 7, 9]
    assert [value for _, value in found] == [0, 2, 4, 5, 7, 9]


def test_an_evaluation_in_memory_counts_steps_and_not_loops(tmp_path):
    model = replica_model.make(tmp_path, iterations=4)
    hook = estimator.experimental.InMemoryEvaluatorHook(
        model, replica_model.some(16), every_n_iter=6
    )

    model.train(replica_model.train_fn, hooks=[hook], steps=18)

    found = events(tmp_path / "eval")["mae"]
    assert [step for step, _ in found] == [0, 8, 16, 18]


def test_a_warm_start_happens_once(tmp_path, lines):
    first = replica_model.make(tmp_path / "first")
    first.train(replica_model.train_fn, steps=5)
    second = replica_model.make(
        tmp_path / "second", warm_start_from=str(tmp_path / "first")
    )
    second.train(replica_model.train_fn, steps=1)
    weight = second.get_variable_value("w")
    second.train(replica_model.train_fn, steps=1)

    before, _ = replica_model.trained(5)
    assert np.abs(weight - before).max() < np.abs(weight).max() / 2
    assert sum("Warm-starting with" in line for line in lines()) == 1
    assert any("No warm start" in line for line in lines())


def test_statistics_of_a_batch_are_of_each_replica(tmp_path):
    means = []

    def model_fn(features, labels, mode, params):
        mean = v1.get_variable(
            "mean", [3], initializer=v1.zeros_initializer(), trainable=False
        )
        update = mean.assign(tf.reduce_mean(features["x"], 0))
        spec = replica_model.model_fn(features, labels, mode, params)
        return spec._replace(train_op=tf.group(spec.train_op, update))

    for replicas in (1, 2):
        model = replica_model.make(
            tmp_path / str(replicas), replicas, model=model_fn
        )
        model.train(replica_model.train_fn, steps=1)
        means.append(model.get_variable_value("mean"))

    np.testing.assert_allclose(means[0], X[:16].mean(0), rtol=1e-5)
    np.testing.assert_allclose(means[1], X[:8].mean(0), rtol=1e-5)
