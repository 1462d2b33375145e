"""The input's position in checkpoints: stopped runs end as undisturbed ones."""

from __future__ import annotations

import os
import pathlib
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

import fresh_process
from tests.estimator import linear_model
from tfembed import errors, estimator


def shuffled(epochs=None):
    data = tf.data.Dataset.from_tensor_slices(
        ({"x": linear_model.FEATURES}, linear_model.LABELS)
    )
    return data.shuffle(4, seed=3).repeat(epochs).prefetch(2)


def weight_of(model):
    return model.get_variable_value("weight")


def test_training_in_parts_ends_as_training_at_once(tmp_path):
    whole = linear_model.make(tmp_path / "whole")
    whole.train(shuffled, steps=11)
    parts = tmp_path / "parts"

    for steps in (3, 1, 5, 2):
        model = linear_model.make(
            parts, save_input_state=True, save_checkpoints_steps=2
        )
        model.train(shuffled, steps=steps)

    np.testing.assert_array_equal(weight_of(model), weight_of(whole))


def test_without_it_the_input_begins_anew(tmp_path):
    model = linear_model.make(tmp_path)
    model.train(linear_model.input_fn, steps=2)
    model.train(linear_model.input_fn, steps=2)

    assert not np.allclose(
        weight_of(model), linear_model.trained(4)[0], rtol=1e-4
    )


def test_the_input_ends_where_all_parts_together_have_taken_it(tmp_path):
    model = linear_model.make(tmp_path, save_input_state=True)

    model.train(linear_model.once, steps=4)
    model.train(linear_model.once, steps=100)

    assert model.get_variable_value("global_step") == linear_model.BATCHES
    np.testing.assert_allclose(
        weight_of(model),
        linear_model.trained(linear_model.BATCHES)[0],
        rtol=1e-5,
    )


def test_arrays_in_memory_have_a_position_too(tmp_path):
    def input_fn():
        return estimator.inputs.numpy_input_fn(
            {"x": linear_model.FEATURES.reshape(-1, 3)},
            linear_model.LABELS.reshape(-1),
            batch_size=linear_model.ROWS,
            num_epochs=None,
            shuffle=False,
        )()

    for steps in (2, 3):
        model = linear_model.make(tmp_path, save_input_state=True)
        model.train(input_fn, steps=steps)

    np.testing.assert_allclose(
        weight_of(model), linear_model.trained(5)[0], rtol=1e-5
    )


def test_as_many_states_stay_as_checkpoints(tmp_path):
    model = linear_model.make(
        tmp_path,
        save_input_state=True,
        save_checkpoints_steps=1,
        keep_checkpoint_max=2,
    )

    model.train(linear_model.input_fn, steps=6)

    states = sorted(tmp_path.glob("input_state-worker-0.ckpt-*.index"))
    assert [path.name.split("-")[-1] for path in states] == [
        "4.index",
        "5.index",
        "6.index",
    ]


def test_input_that_is_no_dataset_is_refused(tmp_path):
    def input_fn():
        return {"x": tf.ones([2, 3])}, tf.ones([2])

    with pytest.raises(errors.ArgumentError, match="tf.data.Dataset"):
        linear_model.make(tmp_path, save_input_state=True).train(
            input_fn, steps=1
        )


def test_a_policy_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(errors.ArgumentError, match="'warn', 'ignore', 'fail'"):
        estimator.experimental.CheckpointInputPipelineHook(
            linear_model.make(tmp_path), external_state_policy="keep"
        )


PROGRAM = """
import sys, time
import tensorflow as tf
from tests.estimator import linear_model, test_input_state

class Slow(tf.compat.v1.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        time.sleep(0.05)

model = linear_model.make(
    sys.argv[1], save_input_state=True, save_checkpoints_steps=3
)
model.train(test_input_state.shuffled, max_steps=60, hooks=[Slow()])
"""


def run_and_end(folder, end):
    """Starts a program that trains; ends it once it has saved some steps."""
    process = fresh_process.start(PROGRAM, folder)
    deadline = time.monotonic() + 120
    while not (folder / "model.ckpt-9.index").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(end)
    return process.wait(timeout=60)


def steps_saved(folder: pathlib.Path):
    latest = tf.train.latest_checkpoint(str(folder))
    return int(os.path.basename(latest).split("-")[-1])  # noqa: PTH119


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_that_is_ended_goes_on_to_the_same_weights(tmp_path, end):
    folder = tmp_path / "ended"
    folder.mkdir()
    status = run_and_end(folder, end)
    saved = steps_saved(folder)
    model = linear_model.make(folder, save_input_state=True)
    model.train(shuffled, max_steps=60)
    whole = linear_model.make(tmp_path / "whole").train(shuffled, steps=60)

    assert saved < 60
    if end == signal.SIGTERM:
        assert status == 128 + signal.SIGTERM
    else:
        assert status == -signal.SIGKILL
        assert saved % 3 == 0
    np.testing.assert_array_equal(weight_of(model), weight_of(whole))
