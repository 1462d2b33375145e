"""The proof of the TPU side fails where a kernel is wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from tfembed.ops import exchange

ROOT = pathlib.Path(__file__).resolve().parents[2]
needs_environments = pytest.mark.skipif(
    bool(exchange.why_missing())
    or not tf.__version__.startswith("2.20.")
    or not (ROOT / ".venv-jax" / "packages.stamp").exists(),
    reason="no XLA kernels, or no .venv-jax: make tpu-proof",
)


def _prove(folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "proof",
            "--stages",
            "host_runs",
            "--lowered",
            str(folder),
        ],
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        text=True,
        capture_output=True,
        check=False,
    )


@needs_environments
@pytest.mark.slow
def test_a_kernel_with_another_owner_rule_fails_the_proof(tmp_path):
    from proof.lowering import lower
    from proof.programs import programs

    program = next(one for one in programs() if one.name == "forward")
    # The op's kernel is the same; the CPU has no need of the TPU bridge.
    lowered = lower(program, 4, tmp_path, platform=None)
    (tmp_path / "programs.json").write_text(
        json.dumps([dataclasses.asdict(lowered)])
    )
    right = _prove(tmp_path)
    assert right.returncode == 0, right.stdout + right.stderr
    assert " ok " in right.stdout

    # Row i is row i / 4 on i % 4; the kernel asks i / 4 for row i % 4.
    file = tmp_path / lowered.file
    text = file.read_text()
    flipped = _flipped(text)
    assert flipped != text
    file.write_text(flipped)
    wrong = _prove(tmp_path)
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert "FAILED" in wrong.stdout


def _flipped(text: str) -> str:
    """The program with `remainder` and `divide` of ids changed for each other."""
    text = text.replace("stablehlo.remainder", "stablehlo.???")
    text = text.replace("stablehlo.divide", "stablehlo.remainder")
    return text.replace("stablehlo.???", "stablehlo.divide")


def test_missing_wheels_are_named_with_the_way_to_get_them(
    tmp_path, monkeypatch
):
    from proof import venvs

    monkeypatch.setattr(venvs, "ROOT", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "constraints").mkdir()
    (tmp_path / "constraints" / "tf-2.20.txt").touch()
    with pytest.raises(venvs.MissingWheelsError) as raised:
        venvs.make("jax")
    for text in ("jax[tpu]==0.10.2", "libtpu==0.0.42.1", "pip download"):
        assert text in str(raised.value)
    assert not (tmp_path / ".venv-jax" / "packages.stamp").exists()
