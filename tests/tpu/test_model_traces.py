"""A model object's functions under a TPUStrategy on paper."""

from __future__ import annotations

import pytest

from proof import model_traces

MODES = model_traces.MODES


@pytest.mark.parametrize(
    ("name", "mode"),
    [("Keras model", "train"), *(("tf.Module", mode) for mode in MODES)],
)
def test_a_step_is_a_program_of_the_tpu_and_its_input_is_the_hosts(name, mode):
    found = model_traces.trace_model(name, replicas=2, mode=mode)

    assert model_traces.check_model(name, mode, found)
    for other in {"train", "infer"} - {mode}:
        if "train" in (mode, other):
            with pytest.raises(AssertionError):
                model_traces.check_model(name, other, found)
