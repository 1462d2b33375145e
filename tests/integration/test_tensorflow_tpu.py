"""The libraries load into tensorflow-tpu and work without a TPU.

`scripts/test_tensorflow_tpu` makes the environment that this needs.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(__file__).parent / "programs"
PYTHON = ROOT / ".venv-tpu" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.skipif(
    not PYTHON.exists(), reason="no .venv-tpu: run scripts/test_tensorflow_tpu"
)
@pytest.mark.skipif(
    not tf.__version__.startswith("2.20."),
    reason="tensorflow-tpu is there for TensorFlow 2.20 alone",
)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param("lookup.py", id="a lookup on the host"),
        pytest.param("taped_step.py", id="a step lowered for a TPU"),
    ],
)
def test_a_program_works_under_tensorflow_tpu(program):
    result = subprocess.run(
        [PYTHON, PROGRAMS / program],
        env=dict(os.environ, PYTHONPATH=str(ROOT), TPU_SKIP_MDS_QUERY="1"),
        cwd="/",
        text=True,
        capture_output=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("ok\n")
