"""Training that is ended at random moments comes to the same weights.

HYPOTHESIS_PROFILE=full: thirty ends on a CPU, and thirty on replicas.
"""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest

from tests.estimator import processes
from tests.estimator.programs import recommender, running

pytestmark = pytest.mark.slow

IS_FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
ENDS = 30 if IS_FULL else 3
STEPS = 50 * ENDS
SAVE = 3


def make(folder, replicas):
    return running.make(
        recommender,
        folder,
        replicas,
        iterations=SAVE,
        embedding_config_spec=recommender.spec(),
        run_config={
            "save_input_state": True,
            "save_checkpoints_steps": SAVE,
            "keep_checkpoint_max": 2,
        },
    )


def shuffled(params):
    """The examples in another order each time they come."""
    data = recommender.data().shuffle(64, seed=3).repeat()
    return data.batch(params["batch_size"], drop_remainder=True)


def train(folder, replicas):
    make(folder, replicas).train(
        shuffled, max_steps=STEPS, hooks=[processes.Slow()]
    )


def run_and_end(folder, replicas, end, moments):
    """Trains in a process of its own; ends it at a random moment.

    Returns:
      The process's exit code.
    """
    process = processes.start(train, folder, replicas)
    if moments.random() < 0.2 and end == signal.SIGKILL:
        process.join(moments.uniform(0, 4))  # Before a checkpoint, as a rule.
    else:
        processes.wait_for_checkpoint(folder, process)
        process.join(moments.uniform(0, 0.3))
    if process.is_alive():
        os.kill(process.pid, end)
    process.join(processes.SECONDS)
    return process.exitcode


def values_of(model):
    """The dense variables, and each example's score by the tables' rows."""
    found = {
        name: model.get_variable_value(name)
        for name in model.get_variable_names()
        if name.split("/")[0] in ("hidden", "scores", "global_step", "users")
    }
    logits = [p["logits"] for p in model.predict(recommender.eval_fn)]
    return {**found, "logits": np.array(logits)}


@pytest.mark.parametrize(
    "end, replicas",
    [
        (signal.SIGKILL, 2),
        (signal.SIGTERM, 0),
        pytest.param(
            signal.SIGKILL,
            0,
            marks=pytest.mark.skipif(
                not IS_FULL, reason="HYPOTHESIS_PROFILE=full tries it"
            ),
        ),
    ],
)
def test_training_ended_at_random_moments_has_the_same_weights(
    tmp_path, end, replicas
):
    folder = str(tmp_path / "ended")
    moments = random.Random(17)
    statuses = [
        run_and_end(folder, replicas, end, moments) for _ in range(ENDS)
    ]
    expected = -end if end == signal.SIGKILL else 128 + signal.SIGTERM
    assert set(statuses) <= {expected, 0}  # 0: all steps were taken before.
    assert statuses.count(expected) >= 2 * ENDS // 3
    ended = make(folder, replicas)
    ended.train(shuffled, max_steps=STEPS)
    whole = make(str(tmp_path / "whole"), replicas)
    whole.train(shuffled, steps=STEPS)

    found, expected = values_of(ended), values_of(whole)
    assert found["global_step"] == STEPS
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
