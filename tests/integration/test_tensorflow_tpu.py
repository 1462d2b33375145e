"""The ops library loads into tensorflow-tpu and works on the host.

`scripts/test_tensorflow_tpu` makes the environment that this needs.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(__file__).parent / "programs" / "lookup.py"
PYTHON = ROOT / ".venv-tpu" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.skipif(
    not PYTHON.exists(), reason="no .venv-tpu: run scripts/test_tensorflow_tpu"
)
@pytest.mark.skipif(
    not tf.__version__.startswith("2.20."),
    reason="tensorflow-tpu is there for TensorFlow 2.20 alone",
)
def test_the_library_looks_up_rows_under_tensorflow_tpu():
    result = subprocess.run(
        [PYTHON, PROGRAM],
        env=dict(os.environ, PYTHONPATH=str(ROOT), TPU_SKIP_MDS_QUERY="1"),
        cwd="/",
        text=True,
        capture_output=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("ok\n")
