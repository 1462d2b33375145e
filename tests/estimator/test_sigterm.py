"""SIGTERM ends training, and what a training waits for, after a batch.

The kind: a call that runs inside of a training, and did not know that the
training was told to stop. Looked at: `evaluate`, `predict`, exports and
exporters, `InMemoryEvaluatorHook`, the last evaluation of
`train_and_evaluate`, and loops of replicas.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest
import tensorflow as tf

import fresh_process
from tests.estimator import linear_model
from tests.estimator.test_exports import raw_receiver
from tests.estimator.tpu import replica_model
from tfembed import errors, estimator
from tfembed.estimator.runs import sessions

v1 = tf.compat.v1


class Raises(v1.train.SessionRunHook):
    """Sends this process SIGTERM in a step, and counts steps.

    Args:
      step: The step, from 1.
    """

    def __init__(self, step=1):
        self._step = step
        self.steps = 0
        self.ended = False

    def after_run(self, run_context, run_values):
        self.steps += 1
        if self.steps == self._step:
            signal.raise_signal(signal.SIGTERM)

    def end(self, session):
        self.ended = True


@contextlib.contextmanager
def ended_by_sigterm():
    with pytest.raises(SystemExit) as raised:
        yield
    assert raised.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@contextlib.contextmanager
def handling(handler):
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def evaluating(**options):
    """A spec whose evaluations never end."""
    defaults = {"steps": None, "throttle_secs": 0, "start_delay_secs": 0}
    return estimator.EvalSpec(
        **{"input_fn": linear_model.input_fn, **defaults, **options}
    )


TRAIN = estimator.TrainSpec(linear_model.input_fn, max_steps=4)


def test_sigterm_saves_a_checkpoint_and_stops(tmp_path):
    model = linear_model.make(tmp_path)

    with ended_by_sigterm():
        model.train(linear_model.input_fn, hooks=[Raises()], steps=100)

    assert 1 <= model.get_variable_value("global_step") <= 2


def test_a_handler_of_sigterm_is_called_after_the_checkpoint(tmp_path):
    model = linear_model.make(tmp_path)
    seen = []

    def handler(signum, frame):
        seen.append(model.get_variable_value("global_step"))

    with handling(handler):
        model.train(linear_model.input_fn, hooks=[Raises()], steps=100)

    assert len(seen) == 1
    assert seen[0] == sessions.load_global_step_from_checkpoint_dir(tmp_path)


def test_an_endless_evaluation_ends_after_its_batch(tmp_path):
    model = linear_model.make(tmp_path, save_checkpoints_steps=2)
    hook = Raises(3)

    with ended_by_sigterm():
        estimator.train_and_evaluate(model, TRAIN, evaluating(hooks=[hook]))

    assert hook.steps == 3
    assert not hook.ended  # It would take what it has for a result.
    assert not list(tmp_path.glob("eval/*"))
    assert model.get_variable_value("global_step") == 2


def test_the_last_evaluation_does_not_begin_after_sigterm(tmp_path):
    model = linear_model.make(tmp_path)
    train = TRAIN._replace(hooks=(Raises(2),))

    with ended_by_sigterm():
        estimator.train_and_evaluate(model, train, evaluating())

    assert not list(tmp_path.glob("eval/*"))


def test_the_last_evaluation_ends_after_its_batch(tmp_path):
    model = linear_model.make(tmp_path)
    hook = Raises(2)

    with ended_by_sigterm():
        estimator.train_and_evaluate(model, TRAIN, evaluating(hooks=[hook]))

    assert hook.steps == 2
    assert model.get_variable_value("global_step") == 4


def test_a_handler_of_the_program_is_called_after_an_evaluation(tmp_path):
    model = linear_model.make(tmp_path, save_checkpoints_steps=2)
    hook, seen = Raises(2), []

    with handling(lambda *given: seen.append(hook.steps)):
        result = estimator.train_and_evaluate(
            model, TRAIN, evaluating(hooks=[hook])
        )

    assert seen == [2]
    assert result == (None, None)


def test_an_export_is_left_out(tmp_path):
    model = linear_model.make(tmp_path, save_checkpoints_steps=2)

    def receiver():
        signal.raise_signal(signal.SIGTERM)
        return raw_receiver()

    exporters = [
        estimator.LatestExporter("first", receiver),
        estimator.LatestExporter("second", raw_receiver),
    ]
    spec = evaluating(input_fn=linear_model.once, exporters=exporters)

    with ended_by_sigterm():
        estimator.train_and_evaluate(model, TRAIN, spec)

    assert list((tmp_path / "export").glob("*/*")) == []


class Calls(v1.train.SessionRunHook):
    """Calls a function after a step of training, and notes its error."""

    def __init__(self, call):
        self._call = call
        self.errors = []

    def after_run(self, run_context, run_values):
        try:
            self._call()
        except errors.StoppedError as error:
            self.errors.append(str(error))
            raise


@pytest.mark.parametrize("way", ["predict", "evaluate", "export"])
def test_a_call_of_a_hook_ends_and_training_saves_its_step(tmp_path, way):
    other = linear_model.make(tmp_path / "other")
    other.train(linear_model.input_fn, steps=1)
    model = linear_model.make(tmp_path / "model")

    def call():
        if way == "predict":
            list(other.predict(linear_model.input_fn, hooks=[Raises(2)]))
        elif way == "evaluate":
            other.evaluate(linear_model.input_fn, hooks=[Raises(2)])
        else:
            signal.raise_signal(signal.SIGTERM)
            other.export_saved_model(str(tmp_path / "export"), raw_receiver)

    hook = Calls(call)
    with ended_by_sigterm():
        model.train(linear_model.input_fn, hooks=[hook], steps=3)

    (error,) = hook.errors
    assert "inside of a training ends without a result" in error
    assert model.get_variable_value("global_step") == 1
    assert not (tmp_path / "export").exists()


def test_an_evaluation_in_memory_ends_after_its_batch(tmp_path):
    model = linear_model.make(tmp_path)
    hook = Raises(2)
    evaluator = estimator.experimental.InMemoryEvaluatorHook(
        model, linear_model.input_fn, hooks=[hook], every_n_iter=1
    )

    with ended_by_sigterm():
        model.train(linear_model.input_fn, hooks=[evaluator], steps=3)

    assert not list(tmp_path.glob("eval/*"))


class Batches:
    """An input_fn of endless batches, which sends SIGTERM with one of them.

    Args:
      number: The number of that batch.
    """

    def __init__(self, number):
        self._number = number
        self.count = 0

    def __call__(self, params):
        size = params["batch_size"]

        def rows():
            while True:
                self.count += 1
                if self.count == self._number:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield {"x": replica_model.X[:size]}, replica_model.Y[:size]

        spec = tf.TensorSpec([size, 3]), tf.TensorSpec([size, 1])
        return tf.data.Dataset.from_generator(
            rows, output_signature=({"x": spec[0]}, spec[1])
        )


# Batches that a session reads ahead of its steps.
AHEAD = 100
MANY = 10_000


@pytest.mark.parametrize("replicas", [0, 2])
def test_a_loop_of_training_ends_after_its_step(tmp_path, replicas):
    batches = Batches(10)
    model = replica_model.make(tmp_path, replicas, iterations=MANY)

    with ended_by_sigterm():
        model.train(batches, max_steps=MANY)

    assert batches.count < AHEAD
    assert 0 < model.get_variable_value("global_step") < AHEAD


@pytest.mark.parametrize("replicas", [0, 2])
def test_a_loop_of_an_evaluation_ends_after_its_step(tmp_path, replicas):
    batches = Batches(10)
    model = replica_model.make(tmp_path, replicas)
    train = estimator.TrainSpec(replica_model.train_fn, max_steps=4)

    with ended_by_sigterm():
        estimator.train_and_evaluate(
            model, train, evaluating(input_fn=batches, steps=MANY)
        )

    assert batches.count < AHEAD
    assert not list(tmp_path.glob("eval/*"))
    assert model.latest_checkpoint().endswith("model.ckpt-4")


def test_a_prediction_of_a_hook_ends_and_its_step_is_saved(tmp_path):
    batches = Batches(10)
    model = replica_model.make(tmp_path, 0, iterations=1)
    calls = Calls(lambda: list(model.predict(batches)))

    with ended_by_sigterm():
        model.train(replica_model.train_fn, max_steps=3, hooks=[calls])

    assert batches.count < AHEAD
    assert model.latest_checkpoint().endswith("model.ckpt-1")


def test_a_prediction_of_replicas_ends_after_its_batch(tmp_path):
    batches = Batches(10)
    model = replica_model.make(tmp_path, 2, iterations=MANY)
    hook = Calls(lambda: list(model.predict(batches)))

    with ended_by_sigterm():
        model.train(replica_model.train_fn, max_steps=1, hooks=[hook])

    assert batches.count < AHEAD
    assert len(hook.errors) == 1


WAITING = """
import sys, time
import tensorflow as tf
from tests.estimator import linear_model
from tfembed.estimator.runs import sigterm

sigterm._UNTIL_SECOND_SIGTERM = 0.5
tf.compat.v1.logging.set_verbosity("INFO")

def input_fn():
    def rows():
        yield {"x": [1.0, 2.0, 3.0]}, 1.0
        print("waits", flush=True)
        time.sleep(1000)

    spec = ({"x": tf.TensorSpec([3])}, tf.TensorSpec([]))
    return tf.data.Dataset.from_generator(rows, output_signature=spec).batch(1)

linear_model.make(sys.argv[1]).train(input_fn, steps=5)
"""


@pytest.mark.slow
def test_a_second_sigterm_ends_a_program_whose_input_does_not_come(tmp_path):
    process = fresh_process.start(WAITING, tmp_path / "model")
    try:
        process.wait_for_output("waits\n")
        for _ in range(2):  # A shell may send the first one twice.
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        time.sleep(1)
        assert process.poll() is None
        assert "A second SIGTERM" in process.printed()[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
