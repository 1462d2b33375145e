"""Hooks that stop training, evaluate in memory, log, write summaries."""

from __future__ import annotations

import json
import logging
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tfembed import errors, estimator
from tfembed.estimator.private import v1_sessions
from tfembed.estimator.runs import early_stopping

v1 = tf.compat.v1
experimental = estimator.experimental


@pytest.fixture
def lines(caplog):
    """The lines that are logged."""
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel(logging.INFO)
    with caplog.at_level(logging.INFO, logger="tensorflow"):
        yield lambda: [record.getMessage() for record in caplog.records]
    logger.setLevel(before)


def summaries(folder):
    """The values of all event files, by tag, by step."""
    found = {}
    for path in folder.glob("events.out.tfevents.*"):
        for event in v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                number = (
                    float(tf.make_ndarray(value.tensor))
                    if value.HasField("tensor")
                    and value.tensor.dtype == tf.float32
                    else value.simple_value
                )
                found.setdefault(value.tag, {})[event.step] = number
    return found


def test_a_function_ends_training(tmp_path):
    model = linear_model.make(tmp_path)
    asked = []

    def should_stop():
        asked.append(len(asked))
        return len(asked) == 3

    hook = experimental.make_early_stopping_hook(
        model, should_stop, run_every_secs=None, run_every_steps=2
    )
    model.train(linear_model.input_fn, hooks=[hook], steps=100)

    assert len(asked) == 3
    assert 4 <= model.get_variable_value("global_step") <= 6


def write_losses(model, values):
    writer = v1.summary.FileWriterCache.get(model.eval_dir())
    for step, value in values.items():
        summary = v1.Summary(
            value=[v1.Summary.Value(tag="loss", simple_value=value)]
        )
        writer.add_summary(summary, step)
    writer.flush()


FALLING = {0: 0.9, 10: 0.8, 20: 0.7}
STALLED = {0: 0.9, 10: 0.8, 20: 0.85, 30: 0.8}


@pytest.mark.parametrize(
    ("make", "argument", "losses", "stops"),
    [
        (experimental.stop_if_lower_hook, 0.75, FALLING, True),
        (experimental.stop_if_lower_hook, 0.5, FALLING, False),
        (experimental.stop_if_higher_hook, 0.85, FALLING, True),
        (experimental.stop_if_higher_hook, 1.0, FALLING, False),
        (experimental.stop_if_no_decrease_hook, 20, STALLED, True),
        (experimental.stop_if_no_decrease_hook, 30, STALLED, False),
        (experimental.stop_if_no_increase_hook, 20, FALLING, True),
        (experimental.stop_if_no_increase_hook, 30, STALLED, True),
    ],
)
def test_metrics_end_training(tmp_path, make, argument, losses, stops):
    with tf.Graph().as_default():
        model = linear_model.make(tmp_path)
        write_losses(model, losses)
    hook = make(model, "loss", argument, run_every_secs=None, run_every_steps=1)

    model.train(linear_model.input_fn, hooks=[hook], steps=3)

    assert (model.get_variable_value("global_step") < 3) == stops


def test_a_metric_that_no_evaluation_has_is_named(tmp_path):
    with tf.Graph().as_default():
        model = linear_model.make(tmp_path)
        write_losses(model, FALLING)
    hook = experimental.stop_if_lower_hook(
        model, "auc", 1.0, run_every_secs=None, run_every_steps=1
    )

    with pytest.raises(errors.ArgumentError, match=r"'auc'.*\['loss'\]"):
        model.train(linear_model.input_fn, hooks=[hook], steps=3)


def test_hooks_that_cannot_work_are_refused(tmp_path):
    model = linear_model.make(tmp_path)

    with pytest.raises(errors.DtypeError, match="`estimator` must have type"):
        experimental.make_early_stopping_hook("model", lambda: True)
    with pytest.raises(errors.DtypeError, match="must be callable"):
        experimental.make_early_stopping_hook(model, True)
    with pytest.raises(errors.ArgumentError, match="Only one of `run_every_"):
        experimental.make_early_stopping_hook(
            model, lambda: True, run_every_secs=1, run_every_steps=1
        )
    with pytest.raises(errors.ArgumentError, match="last_step must be spec"):
        early_stopping.StopAtCheckpointStepHook("folder", None)
    with pytest.raises(errors.ArgumentError, match="every_n_iter=0"):
        experimental.InMemoryEvaluatorHook(
            model, linear_model.once, every_n_iter=0
        )


def test_workers_wait_for_the_checkpoint_of_the_last_step(
    tmp_path, monkeypatch
):
    model = linear_model.make(tmp_path / "chief")
    model.train(linear_model.input_fn, steps=5)
    worker = linear_model.make(tmp_path / "worker")
    hook = early_stopping.StopAtCheckpointStepHook(model.model_dir, 5, 0)

    worker.train(linear_model.input_fn, hooks=[hook], steps=50)

    assert 4 <= worker.get_variable_value("global_step") <= 6
    environment = {
        "cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]},
        "task": {"type": "worker", "index": 0},
    }
    monkeypatch.setenv("TF_CONFIG", json.dumps(environment))
    model = linear_model.make(tmp_path)
    assert isinstance(
        experimental.make_stop_at_checkpoint_step_hook(model, 5),
        early_stopping.StopAtCheckpointStepHook,
    )
    assert isinstance(
        experimental.make_early_stopping_hook(model, lambda: True),
        early_stopping.CheckForStoppingHook,
    )
    with pytest.raises(errors.ArgumentError, match="only single machine"):
        experimental.InMemoryEvaluatorHook(model, linear_model.once)


def test_a_model_is_evaluated_while_it_trains(tmp_path):
    model = linear_model.make(tmp_path)
    hook = experimental.InMemoryEvaluatorHook(
        model, linear_model.once, every_n_iter=2
    )

    model.train(linear_model.input_fn, hooks=[hook], steps=5)

    losses = summaries(tmp_path / "eval")["loss"]
    assert sorted(losses) == [0, 2, 4, 5]
    for step, loss in losses.items():
        np.testing.assert_allclose(
            loss, linear_model.losses(step).mean(), rtol=1e-5
        )


def test_progress_tells_loss_step_of_how_many_and_speed(tmp_path, lines):
    model = linear_model.make(tmp_path, log_step_count_steps=4)

    model.train(linear_model.input_fn, steps=9)

    progress = [line for line in lines() if line.startswith("loss = ")]
    assert [re.search(r"step = \d+ of \d+", one)[0] for one in progress] == [
        "step = 1 of 9",
        "step = 5 of 9",
        "step = 9 of 9",
    ]
    loss = float(re.match(r"loss = ([\d.e+-]+),", progress[1])[1])
    np.testing.assert_allclose(loss, linear_model.losses(4)[4], rtol=1e-4)
    speed = re.search(r"([\d.e+]+) steps/sec, ([\d.e+]+) ex", progress[1])
    np.testing.assert_allclose(
        float(speed[2]), linear_model.ROWS * float(speed[1]), rtol=1e-2
    )


def test_input_that_ends_too_early_is_said(tmp_path, lines):
    linear_model.make(tmp_path).train(linear_model.once, steps=100)

    assert any("at step 6, before step 100" in line for line in lines())


def test_summaries_of_both_kinds_are_written(tmp_path):
    def model_fn(features, labels, mode):
        spec = linear_model.model_fn(features, labels, mode)
        v1.summary.scalar("old", spec.loss)
        tf.summary.scalar("new", spec.loss)
        return spec

    model = estimator.Estimator(
        model_fn, tmp_path, config=estimator.RunConfig(save_summary_steps=2)
    )
    model.train(linear_model.input_fn, steps=5)

    written = summaries(tmp_path)
    for step in (0, 2, 4):
        loss = linear_model.losses(step)[step]
        np.testing.assert_allclose(written["new"][step], loss, rtol=1e-5)
    assert sorted(written["new"]) == [0, 2, 4]
    old = sorted(written["old"].values())
    new = sorted(written["new"].values())
    np.testing.assert_allclose(old, new, rtol=1e-5)


def test_a_summary_sees_variables_as_they_were_before_the_step(tmp_path):
    def model_fn(features, labels, mode):
        spec = linear_model.model_fn(features, labels, mode)
        bias = v1.get_collection("trainable_variables", "bias")[0]
        tf.summary.scalar("bias_before", bias.read_value())
        return spec

    model = estimator.Estimator(
        model_fn, tmp_path, config=estimator.RunConfig(save_summary_steps=1)
    )
    model.train(linear_model.input_fn, steps=6)

    written = summaries(tmp_path)["bias_before"]
    np.testing.assert_allclose(
        [written[step] for step in range(6)],
        [linear_model.trained(step)[1] for step in range(6)],
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.parametrize("as_text", [True, False])
def test_the_graph_is_written_with_either_protobuf(
    tmp_path, monkeypatch, as_text
):
    monkeypatch.setattr(v1_sessions, "writes_text_graphs", lambda: as_text)

    linear_model.make(tmp_path).train(linear_model.input_fn, steps=1)

    graph = v1.GraphDef()
    v1_sessions.text_format.Parse((tmp_path / "graph.pbtxt").read_text(), graph)
    assert "weight" in [node.name for node in graph.node]


def test_text_that_protobuf_cannot_write_is_noticed(monkeypatch):
    def no_float_format(message, **options):
        raise TypeError("unexpected keyword argument 'float_format'")

    monkeypatch.setattr(
        v1_sessions.text_format, "MessageToString", no_float_format
    )

    assert not v1_sessions.writes_text_graphs()


def test_a_loss_that_is_no_number_ends_training(tmp_path):
    def model_fn(features, labels, mode):
        spec = linear_model.model_fn(features, labels, mode)
        return spec._replace(loss=spec.loss * np.nan)

    with pytest.raises(v1.train.NanLossDuringTrainingError):
        estimator.Estimator(model_fn, tmp_path).train(
            linear_model.input_fn, steps=2
        )


def test_listeners_need_something_that_saves(tmp_path):
    model = linear_model.make(tmp_path, save_checkpoints_secs=None)

    with pytest.raises(errors.ArgumentError, match="CheckpointSaverHook"):
        model.train(
            linear_model.input_fn,
            steps=1,
            saving_listeners=[v1.train.CheckpointSaverListener()],
        )
