"""The wheel works in a fresh environment, outside the checkout."""

from __future__ import annotations

import os
import pathlib
import site
import subprocess
import sys
import zipfile

import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(__file__).parent / "programs" / "lookup.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    """Builds the wheel as `make wheel` does."""
    if not (ROOT / "setup.py").exists():
        pytest.skip("these tests do not lie in a checkout")
    pytest.importorskip("setuptools", "77", reason="too old to build a wheel")
    folder = tmp_path_factory.mktemp("wheel")
    # Several processes of tests may build it at once, each in a folder of its
    # own.
    options = folder / "setup.cfg"
    options.write_text(
        f"[build]\nbuild_base={folder}/build\n[egg_info]\negg_base={folder}\n"
    )
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "DIST_EXTRA_CONFIG": str(options),
    }
    subprocess.run(command, check=True, env=environment)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_names_the_tensorflow_minor_version(wheel):
    minor = "".join(tf.__version__.split(".")[:2])

    assert f"+tf{minor}-py3-none-linux_" in wheel.name


def test_the_wheel_holds_the_package_alone(wheel):
    names = zipfile.ZipFile(wheel).namelist()

    assert "tfembed/ops/_tfembed_ops.so" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"tfembed"}


def test_an_installed_wheel_looks_up_rows_outside_the_checkout(wheel, tmp_path):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    (packages,) = environment.glob("lib/python3.*/site-packages")
    # TensorFlow and NumPy come from this environment; an editable tfembed in it
    # is linked by a .pth file, and those are read of the first folder only.
    (packages / "tensorflow.pth").write_text("\n".join(site.getsitepackages()))
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", wheel],
        check=True,
    )
    result = subprocess.run(
        [python, "-I", PROGRAM],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert str(packages / "tfembed") in result.stdout
