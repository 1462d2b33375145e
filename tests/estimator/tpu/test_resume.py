"""Training on replicas that was stopped goes on where it was."""

from __future__ import annotations

import random
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

import fresh_process
from tests.estimator.tpu import replica_model
from tests.estimator.tpu.replica_model import X, Y

STEPS = 40


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("TFEMBED_SIMULATED_CORES", raising=False)
    monkeypatch.delenv("TFEMBED_SIMULATED_HOSTS", raising=False)


def shuffled(params):
    data = tf.data.Dataset.from_tensor_slices(({"x": X}, Y))
    data = data.shuffle(64, seed=3).repeat()
    return data.batch(params["batch_size"], drop_remainder=True)


def make(folder, replicas=2, pipeline=2):
    return replica_model.make(
        folder,
        replicas,
        iterations=3,
        tpu_config={"per_host_input_for_training": pipeline},
        run_config={
            "save_input_state": True,
            "save_checkpoints_steps": 3,
            "tf_random_seed": 1,
        },
    )


def weights_of(model):
    return model.get_variable_value("w")


@pytest.mark.parametrize("replicas, pipeline", [(0, 2), (2, 2), (2, 3)])
def test_training_in_parts_ends_as_training_at_once(
    tmp_path, replicas, pipeline
):
    parts = make(tmp_path / "parts", replicas, pipeline)
    for steps in (4, 3, 6):
        parts.train(shuffled, steps=steps)
    whole = make(tmp_path / "whole", replicas, pipeline)
    whole.train(shuffled, steps=13)

    np.testing.assert_array_equal(weights_of(parts), weights_of(whole))


def test_the_input_of_several_hosts_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("TFEMBED_SIMULATED_CORES", "4")
    monkeypatch.setenv("TFEMBED_SIMULATED_HOSTS", "2")
    parts = make(tmp_path / "parts", 4, 3)
    parts.train(shuffled, steps=4).train(shuffled, steps=4)
    whole = make(tmp_path / "whole", 4, 3).train(shuffled, steps=8)

    np.testing.assert_array_equal(weights_of(parts), weights_of(whole))


PROGRAM = f"""
import sys, time
import tensorflow as tf
from tests.estimator.tpu import test_resume

class Slow(tf.compat.v1.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        time.sleep(0.1)

model = test_resume.make(sys.argv[1])
model.train(test_resume.shuffled, max_steps={STEPS}, hooks=[Slow()])
"""


def run_and_end(folder, end, after):
    """Trains in a process, and ends it some seconds after a checkpoint."""
    process = fresh_process.start(PROGRAM, folder)
    deadline = time.monotonic() + 150
    latest = tf.train.latest_checkpoint(str(folder))
    while (
        tf.train.latest_checkpoint(str(folder)) == latest
        and process.poll() is None
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(after)
    process.send_signal(end)
    return process.wait(timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_ended_at_any_moment_goes_on(tmp_path, end):
    folder = tmp_path / "ended"
    folder.mkdir()
    moments = random.Random(17)
    for _ in range(2):
        run_and_end(folder, end, moments.uniform(0, 0.5))
    model = make(folder)
    model.train(shuffled, max_steps=STEPS)
    whole = make(tmp_path / "whole").train(shuffled, steps=STEPS)

    assert model.get_variable_value("global_step") == STEPS
    np.testing.assert_array_equal(weights_of(model), weights_of(whole))
