"""What `make tpu-proof` lowers of a model_fn, without the TPU's compiler."""

from __future__ import annotations

import re

import numpy as np
import pytest

from proof import estimator_models, estimator_steps

DENSE = estimator_models.MODELS[0]


@pytest.mark.slow
def test_a_step_is_lowered_with_its_variables_as_arguments():
    text, names = estimator_steps.lowered(DENSE, replicas=2)

    assert "tf." not in text.replace("tf.aliasing_output", "")
    assert len(names) == len(set(names)) == 15
    assert {"global_step", "hidden/kernel", "hidden/kernel/Adam"} <= set(names)
    results = re.findall(r"tf\.aliasing_output = (\d+)", text)
    assert sorted(map(int, results)) == list(range(1, 16))
    assert text.count("stablehlo.all_reduce") == 4
    assert text.count("replica_groups = dense<[[0, 1]]>") == 4


@pytest.mark.slow
def test_simulated_replicas_go_on_from_what_they_began_with():
    found = estimator_steps.simulated(DENSE, replicas=2, steps=3)

    assert found["loss"].shape == (3, 2)
    assert found["after/global_step"] - found["before/global_step"] == 3
    assert not np.array_equal(
        found["before/hidden/kernel"], found["after/hidden/kernel"]
    )
