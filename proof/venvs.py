"""The environments that the proof needs, each made once beside the checkout.

    python -m proof.venvs tpu

makes one of them.
"""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["MissingWheelsError", "make", "pythons_of"]

ROOT = pathlib.Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class _Environment:
    """One environment: its folder, its pinned wheels, what comes with them."""

    folder: str
    wheels: tuple[str, ...]
    others: tuple[str, ...] = ()
    constraints: str = ""


# libtpu 0.0.51 aborts under tensorflow-tpu 2.20.0; JAX has its own.
_ENVIRONMENTS = {
    "tpu": _Environment(
        ".venv-tpu",
        ("tensorflow-tpu==2.20.0", "libtpu==0.0.23"),
        ("rich",),
        "constraints/tf-2.20.txt",
    ),
    "jax": _Environment(
        ".venv-jax", ("jax[tpu]==0.10.2", "libtpu==0.0.42.1"), ("numpy<3",)
    ),
}
_NEEDED = {
    "lowering": "tpu",
    "host_runs": "jax",
    "tpu_compiles": "jax",
    "traces": None,
    "estimator_steps": None,
    "estimator_runs": "jax",
}


class MissingWheelsError(Exception):
    """Wheels that the proof needs cannot be installed."""


def pythons_of(stages: Sequence[str]) -> dict[str, str]:
    """By stage, the Python that runs it; environments are made where needed.

    Raises:
      MissingWheelsError: one cannot be made; it says which wheels are missing.
    """
    found = {}
    for stage in stages:
        name = _NEEDED[stage]
        found[stage] = sys.executable if name is None else make(name)
    return found


def make(name: str) -> str:
    """Makes an environment where it is not there; returns its Python.

    Raises:
      MissingWheelsError: its wheels cannot be had.
    """
    wanted = _ENVIRONMENTS[name]
    folder = ROOT / wanted.folder
    python = folder / "bin" / "python"
    stamp = folder / "packages.stamp"
    wheels = " ".join(wanted.wheels)
    if stamp.exists() and stamp.read_text() == wheels and python.exists():
        return str(python)
    if sys.version_info < (3, 11):
        raise MissingWheelsError(
            f"{wheels}: these wheels need Python 3.11 or newer; this is "
            f"{sys.version.split()[0]}. Make .venv with a newer Python."
        )
    print(f"installing {wheels} into {wanted.folder}", flush=True)
    subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(folder)], check=True
    )
    options = ["-c", wanted.constraints] if wanted.constraints else []
    result = subprocess.run(
        [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-input",
            *options,
            *wanted.wheels,
            *wanted.others,
        ],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    if result.returncode:
        raise MissingWheelsError(
            f"The proof needs these wheels, and pip could not install them: "
            f"{wheels}\n\n{result.stderr.strip()[-2000:]}\n\n"
            "Where there is no way to the package index, download them on "
            "another machine with the same Python\n"
            f"    pip download --dest wheels {wheels}\n"
            "and let pip find them: PIP_FIND_LINKS=wheels make tpu-proof"
        )
    stamp.write_text(wheels)
    return str(python)


if __name__ == "__main__":
    try:
        print(make(sys.argv[1]))
    except MissingWheelsError as error:
        sys.exit(str(error))
