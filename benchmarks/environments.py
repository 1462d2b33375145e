"""Where the peers that are no part of TensorFlow are installed."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

# TFRA's last release and the last TensorFlow that it loads in.
_TFRA = (
    ["tensorflow-cpu==2.16.2", "tf-keras==2.16.0"],
    [
        "tensorflow-recommenders-addons==0.8.1",
        "typeguard==4.4.1",
        "packaging==24.2",
    ],
)
# The last FBGEMM that loads beside a torch that can be had; torch 2.13.0 is the
# CPU's where pip finds it.
_TORCH = (["torch==2.13.0", "numpy", "scipy"], ["fbgemm-gpu-cpu==1.8.0"])


def cache_folder() -> pathlib.Path:
    """Where environments are kept: $XDG_CACHE_HOME/tfembed-benchmarks."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "tfembed-benchmarks"


def tfra_python() -> str:
    """The interpreter of an environment with TFRA, made on first use.

    Raises:
      subprocess.CalledProcessError: pip could not install it.
    """
    return _python("tfra-0.8.1", _TFRA)


def torch_python() -> str:
    """The same for torch and FBGEMM."""
    return _python("torch-2.13.0", _TORCH)


def _python(name: str, packages: tuple[list[str], list[str]]) -> str:
    folder = cache_folder() / name
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"installing {name} into {folder}", flush=True)
        subprocess.run(
            [sys.executable, "-m", "venv", "--clear", folder], check=True
        )
        pip = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *packages[0]], check=True)
        subprocess.run([*pip, "--no-deps", *packages[1]], check=True)
        (folder / "ready").touch()
    return str(python)
