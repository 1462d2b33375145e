"""Prints as JSON where TensorFlow is, its version, C++ ABI and XLA headers.

Runs in the interpreter whose TensorFlow is wanted (`python -I` keeps the
working directory and pip's build environment out), and finds the package
without importing it, which would take seconds.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import mmap
import pathlib
import sys

# The minor versions that tfembed supports, first and last.
OLDEST = (2, 16)
NEWEST = (2, 21)
DISTRIBUTIONS = (
    "tensorflow-cpu",
    "tensorflow-tpu",
    "tensorflow",
    "tensorflow-cpu-aws",
    "tensorflow-intel",
    "tensorflow-rocm",
)


def find_tensorflow() -> dict[str, object]:
    """Returns what main() prints; raises LookupError without one."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise LookupError(f"TensorFlow is not installed for {sys.executable}.")
    root = pathlib.Path(spec.submodule_search_locations[0])
    library = root / "libtensorflow_framework.so.2"
    if not library.exists() or not library.stat().st_size:
        raise LookupError(
            f"{library} is missing or empty: not a Linux TensorFlow wheel."
        )
    return {
        "root": str(root),
        "version": _version(root),
        "cxx11_abi": _has_cxx11_abi(library),
        "has_xla_headers": _has_xla_headers(root / "include"),
    }


def check_supported(version: str) -> None:
    """Raises LookupError for a TensorFlow that tfembed does not know."""
    minor = tuple(int(part) for part in version.split(".")[:2])
    if not OLDEST <= minor <= NEWEST:
        oldest, newest = (".".join(map(str, end)) for end in (OLDEST, NEWEST))
        raise LookupError(
            f"TensorFlow {version} is installed, and tfembed supports {oldest}"
            f" to {newest}. Nothing was compiled. Install a supported version,"
            f" for example: pip install 'tensorflow-cpu~={newest}.0'"
        )


def _version(root: pathlib.Path) -> str:
    for name in DISTRIBUTIONS:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if (root / "__init__.py").samefile(
            distribution.locate_file("tensorflow/__init__.py")
        ):
            return distribution.version
    import tensorflow as tf  # An unknown distribution: ask the package itself.

    return tf.__version__


def _has_cxx11_abi(library: pathlib.Path) -> bool:
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return content.find(b"StrCatB5cxx11") >= 0


def _has_xla_headers(include: pathlib.Path) -> bool:
    """Says whether XLA kernels compile: 2.21's wheel lacks what they include."""
    kernel = include / "tensorflow" / "compiler" / "tf2xla" / "xla_op_kernel.h"
    printer = include / "xla" / "printer.h"
    if not (kernel.exists() and printer.exists()):
        return False
    return (
        "highwayhash/" not in printer.read_text()
        or (include / "highwayhash").exists()
    )


if __name__ == "__main__":
    try:
        print(json.dumps(find_tensorflow()))
    except LookupError as error:
        sys.exit(str(error))
