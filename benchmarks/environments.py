"""Where the peers that are no part of TensorFlow are installed."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys


class UnavailableError(RuntimeError):
    """A peer cannot take part here; the text says why."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """The packages that pip installs for a peer.

    Attributes:
      name: of the folder.
      packages: with all that they need.
      alone: after these, without what they ask for.
      check: statements that fail where the peer does not load.
      stand_ins: libraries that are not installed, in whose place empty ones are
        made; where in the packages' folder these lie is the first item.
      variables: of the environment, to set for the peer's process.
    """

    name: str
    packages: tuple[str, ...]
    alone: tuple[str, ...]
    check: str
    stand_ins: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def python(self) -> str:
        """The interpreter of the environment, which is made on first use.

        Raises:
          UnavailableError: pip could not install it, or it does not load.
        """
        folder = cache_folder() / self.name
        python = folder / "bin" / "python"
        if not (folder / "ready").exists():
            print(f"installing {self.name} into {folder}", flush=True)
            try:
                self._install(folder, python)
            except (subprocess.CalledProcessError, OSError) as error:
                raise UnavailableError(_reason(error)) from error
            (folder / "ready").touch()
        return str(python)

    def _install(self, folder: pathlib.Path, python: pathlib.Path) -> None:
        _run(sys.executable, "-m", "venv", "--clear", folder)
        pip = [python, "-m", "pip", "install", "--quiet"]
        if self.packages:
            _run(*pip, *self.packages)
        if self.alone:
            _run(*pip, "--no-deps", *self.alone)
        where, *names = self.stand_ins or ("",)
        for name in names:
            packages = next(folder.glob("lib/python*/site-packages"))
            library = packages / where / name
            _run("gcc", "-shared", "-x", "c", "/dev/null", f"-Wl,-soname,{name}",
                 "-o", library)  # fmt: skip
        _run(python, "-c", self.check, **dict(self.variables))


# TFRA's last release and the last TensorFlow that it loads in.
TFRA = Environment(
    name="tfra-0.8.1",
    packages=("tensorflow-cpu==2.16.2", "tf-keras==2.16.0"),
    alone=(
        "tensorflow-recommenders-addons==0.8.1",
        "typeguard==4.4.1",
        "packaging==24.2",
    ),
    check="import tensorflow_recommenders_addons",
    variables=(("TF_USE_LEGACY_KERAS", "1"),),
)
# The last FBGEMM that loads beside a torch that can be had; torch 2.13.0 is the
# CPU's where pip finds it.
TORCH = Environment(
    name="torch-2.13.0",
    packages=("torch==2.13.0", "numpy", "scipy"),
    alone=("fbgemm-gpu-cpu==1.8.0",),
    check="import torch, fbgemm_gpu",
)
# Intel's last extension and its torch, which the registry has for CUDA alone:
# 3 GB of libraries that lookups on a CPU never call. Empty ones stand in for
# them, but for the runtime, in which torch registers its kernels when it is
# loaded; the variable has names bound when they are first called.
IPEX = Environment(
    name="ipex-2.8.0",
    packages=(
        "numpy<2.4",
        "filelock",
        "fsspec",
        "jinja2",
        "networkx",
        "packaging",
        "psutil",
        "ruamel.yaml",
        "setuptools<81",
        "sympy",
        "typing-extensions",
    ),
    alone=(
        "torch==2.8.0",
        "intel-extension-for-pytorch==2.8.0",
        "nvidia-cuda-runtime-cu12==12.8.90",
    ),
    check="import intel_extension_for_pytorch",
    stand_ins=(
        "torch/lib",
        "libcublas.so.12",
        "libcublasLt.so.12",
        "libcudnn.so.9",
        "libcufft.so.11",
        "libcufile.so.0",
        "libcupti.so.12",
        "libcurand.so.10",
        "libcusparse.so.12",
        "libcusparseLt.so.0",
        "libnccl.so.2",
    ),
    variables=(("TORCH_USE_RTLD_GLOBAL", "1"),),
)
# AMD's plug-in and the TensorFlow that it is made for.
ZENTF = Environment(
    name="zentf-2.20.0.0",
    packages=("tensorflow-cpu==2.20.0", "numpy<2", "ml-dtypes<0.6"),
    alone=("zentf==2.20.0.0",),
    check="import tensorflow as tf; assert tf.config.list_physical_devices()",
    variables=(("TF_ENABLE_ZENDNN_OPTS", "1"),),
)

# The last TensorFlow with an estimator.
ESTIMATOR = Environment(
    name="tensorflow-2.15",
    packages=("tensorflow-cpu==2.15.1", "numpy<2"),
    alone=(),
    check="import tensorflow as tf; tf.compat.v1.estimator.tpu.TPUEstimator",
)


def cache_folder() -> pathlib.Path:
    """Where environments are kept: $XDG_CACHE_HOME/tfembed-benchmarks."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "tfembed-benchmarks"


def _run(*command: object, **variables: str) -> None:
    subprocess.run(
        [str(part) for part in command],
        check=True,
        text=True,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
    )


def _reason(error: Exception) -> str:
    """The last line of what a command said, or the error."""
    lines = (getattr(error, "stderr", None) or "").strip().splitlines()
    return lines[-1] if lines else str(error)
