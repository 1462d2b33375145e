"""Builds the libraries with Bazel and puts them into the package.

They fit the one TensorFlow minor version they were compiled against. So each
release has a wheel for each minor version, and the last number of a wheel's
version names it: 0.1.0.220 is tfembed 0.1.0 for TensorFlow 2.20. Its extras
ask for that TensorFlow, so that pip finds the wheel that fits. That TensorFlow
is the one of $PYTHON, else of the interpreter that runs this.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "build_tools"))
import bazel  # noqa: E402  (found through the line above)
import find_tensorflow as finder  # noqa: E402  (through that line, too)

VERSION = "0.1.0"
HOME = "https://github.com/tfembed/tfembed"
OPS_LIBRARY = "_tfembed_ops.so"
XLA_LIBRARY = "_tfembed_xla.so"  # Where TensorFlow's wheel has the headers.
SEALED_LIBRARY = "_tfembed_sealed.so"  # For programs without TensorFlow.
SEALED_HEADER = ROOT / "cc" / "sealed" / "tfembed_sealed.h"
PYTHON = os.environ.get("PYTHON") or sys.executable
BUILD_INFO = '''"""What this copy of tfembed was built for. Written by setup.py."""

VERSION = "{version}"
TENSORFLOW_VERSION = "{tensorflow_version}"
'''


def find_tensorflow() -> dict[str, Any]:
    """Asks $PYTHON, outside pip's build environment, for its TensorFlow."""
    program = ROOT / "build_tools" / "find_tensorflow.py"
    try:
        result = subprocess.run(
            [PYTHON, "-I", str(program)], capture_output=True, text=True
        )
    except OSError as error:
        raise LookupError(
            f"PYTHON is '{PYTHON}', which cannot be run: {error.strerror}. Set it"
            " to the path of an interpreter that has TensorFlow, or unset it."
        ) from error
    if result.returncode:
        raise LookupError(
            f"{result.stderr.strip()} tfembed is compiled against an installed"
            " TensorFlow 2.16 to 2.21: install tensorflow or tensorflow-cpu, or"
            " set PYTHON to an interpreter that has it."
        )
    found: dict[str, Any] = json.loads(result.stdout)
    finder.check_supported(found["version"])
    return found


def libraries() -> list[str]:
    """Returns what is built for $PYTHON's TensorFlow."""
    try:
        has_xla = find_tensorflow()["has_xla_headers"]
    except LookupError:
        has_xla = False
    return [OPS_LIBRARY, SEALED_LIBRARY, *([XLA_LIBRARY] if has_xla else [])]


def minor_version() -> str | None:
    """Returns 2.20, say; None without a TensorFlow that fits."""
    try:
        found = find_tensorflow()
    except LookupError:
        return None
    return ".".join(found["version"].split(".")[:2])


def wheel_version() -> str:
    """Returns 0.1.0.220; 0.1.0 for an sdist and what is built of one.

    pip refuses an sdist whose wheel has another version than its file's name.
    """
    minor = minor_version()
    if minor is None or (ROOT / "PKG-INFO").exists() or "sdist" in sys.argv:
        return VERSION
    return f"{VERSION}.{minor.replace('.', '')}"


def extras() -> dict[str, list[str]]:
    """Returns the extras of pip, for the TensorFlow that this is built for."""
    minor = minor_version()
    if minor is None or "sdist" in sys.argv:
        fits = ">=2.16,<2.22"
    else:
        fits = f"~={minor}.0"
    return {
        "tensorflow": [f"tensorflow{fits}"],
        "cpu": [f"tensorflow-cpu{fits}"],
        "tpu": ["tensorflow-tpu==2.20.0", "libtpu==0.0.23"],
        "io": ["tensorflow-io==0.37.1"],
        "pandas": ["pandas>=2.0"],
        "data": ["pyarrow>=14"],
        "parquet": ["pyarrow>=14"],
        "keras2": [f"tf-keras{fits}"],
        "estimator": [f"tf-keras{fits}", f"tensorboard{fits}"],
    }


def description() -> str:
    """Returns README.md with links that work outside of the checkout."""
    text = (ROOT / "README.md").read_text()
    return re.sub(
        r"\]\((?!https?:|#)([^)]+)\)", rf"]({HOME}/blob/main/\1)", text
    )


class BazelBuild(build_ext):
    """Calls Bazel, then copies its libraries into the package."""

    def get_ext_filename(self, fullname: str) -> str:
        """Returns a plain .so: the libraries do not depend on Python's ABI."""
        return fullname.replace(".", os.sep) + ".so"

    def run(self) -> None:
        try:
            version = find_tensorflow()["version"]
            targets = [f"//:{library}" for library in libraries()]
            bazel.build(PYTHON, version, targets)
        except LookupError as error:
            sys.exit(f"error: {error}")
        except subprocess.CalledProcessError as error:
            sys.exit(
                f"error: Bazel's build failed with status {error.returncode}."
            )
        package = (
            ROOT if self.inplace else pathlib.Path(self.build_lib)
        ) / "tfembed"
        # One of another TensorFlow would not load.
        (package / "ops" / XLA_LIBRARY).unlink(missing_ok=True)
        for library in libraries():
            install(
                bazel.bin_folder(version) / library, package / "ops" / library
            )
        (package / "_build_info.py").write_text(
            BUILD_INFO.format(
                version=wheel_version(), tensorflow_version=version
            )
        )

    def get_outputs(self) -> list[str]:
        package = pathlib.Path(self.build_lib) / "tfembed"
        built = [str(package / "ops" / library) for library in libraries()]
        return [*built, str(package / "_build_info.py")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


def install(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a library; a process that has the old one open keeps that file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)


class BuildWithPrograms(build_py):
    """Puts programs of `tfembed example` and the C header into the package.

    In a checkout they are used in their places.
    """

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copytree(
                ROOT / "examples" / "models",
                pathlib.Path(self.build_lib) / "tfembed" / "examples",
                ignore=shutil.ignore_patterns("__pycache__"),
                dirs_exist_ok=True,
            )
            include = pathlib.Path(self.build_lib) / "tfembed" / "include"
            include.mkdir(parents=True, exist_ok=True)
            shutil.copy(SEALED_HEADER, include)


class FreshBuild(build):
    """Leaves no module of an earlier build in the wheel."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class PlatformWheel(bdist_wheel):
    """Tags the wheel for the platform and for any Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    version=wheel_version(),
    long_description=description(),
    long_description_content_type="text/markdown",
    extras_require=extras(),
    project_urls={
        "Homepage": HOME,
        "Documentation": f"{HOME}/tree/main/docs",
        "Source": HOME,
        "Issues": f"{HOME}/issues",
        "Changelog": f"{HOME}/blob/main/CHANGELOG.md",
    },
    ext_modules=[
        Extension(f"tfembed.ops.{pathlib.Path(library).stem}", sources=[])
        for library in libraries()
    ],
    cmdclass={
        "build": FreshBuild,
        "build_ext": BazelBuild,
        "build_py": BuildWithPrograms,
        "bdist_wheel": PlatformWheel,
    },
)
