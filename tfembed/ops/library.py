"""Loads the op libraries once; errors say what to do if one does not load."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import importlib
import importlib.util
import os
import pathlib
import types
from collections.abc import Iterator
from typing import NoReturn

from tfembed.errors import LibraryError, UnsupportedError

LIBRARY = pathlib.Path(__file__).with_name("_tfembed_ops.so")
XLA_LIBRARY = pathlib.Path(__file__).with_name("_tfembed_xla.so")
SEALED_LIBRARY = pathlib.Path(__file__).with_name("_tfembed_sealed.so")
NO_XLA = "TFEMBED_NO_XLA"  # "1": do not load the XLA kernels, which servers may not need.

# The TensorFlow minor versions that this source supports, first and last.
OLDEST = (2, 16)
NEWEST = (2, 21)

_BUILD = "run `pip install .` (or `make` in a checkout) with that TensorFlow"


_on_host: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "tfembed_on_host", default=False
)


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Allows tracing ops that run on the host of a program for XLA.

    Use it in functions for `tf.compat.v1.tpu.outside_compilation`, which
    TensorFlow's state marks as compiled by XLA.
    """
    token = _on_host.set(True)
    try:
        yield
    finally:
        _on_host.reset(token)


def load() -> types.ModuleType:
    """Returns the module of generated op wrappers, e.g. `tfembed_table_lookup`.

    A graph in which ops are made keeps its custom gradients by itself, so that
    its tables go with it.

    Raises:
      LibraryError: TensorFlow is missing or not supported, or the library is
        missing or was built for another minor version of TensorFlow.
      UnsupportedError: the function that is being traced is for XLA or a TPU.
    """
    module = _open()
    # Imported here, after `_open` has checked TensorFlow's version.
    import tensorflow as tf

    if tf.executing_eagerly():  # Fast path for eager steps.
        return module
    from tfembed.ops import private

    private.free_gradients_with_graph()
    if not _on_host.get() and private.traced_for_xla():
        raise UnsupportedError(
            "Embedding tables live in host memory, and XLA cannot compile their "
            "ops: a lookup or update was traced inside of "
            "tf.function(jit_compile=True), or in a TPUEstimator's replicas. "
            "Leave jit_compile out there (with Keras: "
            "model.compile(jit_compile=False)), or look the rows up outside and "
            "give them to the compiled function. With TPUEstimator, name the "
            "tables in `embedding_config_spec`, where a table may have no "
            "vocabulary size, or set use_tpu=False."
        )
    return module


@functools.cache
def _open() -> types.ModuleType:
    running = check_tensorflow()
    check_build(running, built_for())
    if not LIBRARY.exists():
        raise LibraryError(
            f"tfembed's ops library {LIBRARY} is missing; to build it, {_BUILD}"
            f" {running}."
        )
    # Imported here so that a missing TensorFlow is explained first.
    import tensorflow as tf

    module = tf.load_op_library(str(LIBRARY))
    # Called for names that the module lacks.
    module.__dict__["__getattr__"] = functools.partial(_refuse, running)
    return module


def _refuse(running: str, name: str) -> NoReturn:
    """Raises the error for an op that the library lacks.

    Raises:
      LibraryError: the library was built from older sources.
      AttributeError: the name is not the name of an op.
    """
    if not name.startswith("tfembed_"):
        raise AttributeError(name)
    raise LibraryError(
        f"tfembed's ops library {LIBRARY} has no op `{name}`: it was built "
        "from older sources than the Python files beside it. To build it again, "
        f"{_BUILD} {running}."
    )


@functools.cache
def load_xla() -> str:
    """Loads the XLA kernels, if there are any.

    Returns:
      Why they are missing, and what to do; "" if they are loaded.
    """
    _open()
    if os.environ.get(NO_XLA) == "1":
        return f"{NO_XLA}=1 is set; unset it before tfembed is imported."
    import tensorflow as tf

    if not XLA_LIBRARY.exists():
        return (
            f"{XLA_LIBRARY.name} was not built: TensorFlow {tf.__version__} has "
            "not all headers that it takes. Use TensorFlow 2.16 or 2.20, or "
            f"{_BUILD}, where it has them."
        )
    try:
        tf.load_op_library(str(XLA_LIBRARY))
    except tf.errors.NotFoundError as error:
        return f"TensorFlow {tf.__version__} cannot load it: {error.message}"
    return ""


def load_for_xla() -> types.ModuleType:
    """Returns the module of generated wrappers, for ops with XLA kernels only.

    Raises:
      UnsupportedError: the XLA kernels are missing.
    """
    missing = load_xla()
    if missing:
        raise UnsupportedError(
            "Tables in device memory need tfembed's XLA kernels. " + missing
        )
    from tfembed.ops import private

    private.free_gradients_with_graph()
    return _open()


@functools.cache
def load_sealed() -> ctypes.CDLL:
    """Returns the C library that finds rows in exported files.

    Raises:
      LibraryError: the library is missing.
    """
    if not SEALED_LIBRARY.exists():
        raise LibraryError(
            f"tfembed's library {SEALED_LIBRARY} is missing; to build it, "
            f"{_BUILD} you use."
        )
    return ctypes.CDLL(str(SEALED_LIBRARY))


def check_tensorflow() -> str:
    """Returns the version of the installed TensorFlow; refuses others."""
    supported = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    if importlib.util.find_spec("tensorflow") is None:
        raise LibraryError(
            f"tfembed needs TensorFlow {supported}, and none is installed. "
            "Install one of tensorflow, tensorflow-cpu and tensorflow-tpu, "
            "for example `pip install 'tfembed[cpu]'`."
        )
    import tensorflow as tf

    if not OLDEST <= _minor(tf.__version__) <= NEWEST:
        raise LibraryError(
            f"tfembed supports TensorFlow {supported}; {tf.__version__} is "
            "installed. Install a supported one, for example "
            f"`pip install 'tensorflow-cpu~={NEWEST[0]}.{NEWEST[1]}.0'`."
        )
    return tf.__version__


def check_build(running: str, built_for: str) -> None:
    """Refuses a library for another minor version, which would not open."""
    if _minor(running) != _minor(built_for):
        raise LibraryError(
            f"This tfembed was built for TensorFlow {built_for}, and "
            f"TensorFlow {running} is installed. Install the wheel for it, whose "
            f"version ends in .{''.join(running.split('.')[:2])}, or {_BUILD} "
            f"{running}."
        )


def built_for() -> str:
    """Returns the version of TensorFlow that this copy was built for."""
    try:
        build = importlib.import_module("tfembed._build_info")
    except ModuleNotFoundError:
        raise LibraryError(
            "This copy of tfembed has not been built: tfembed/_build_info.py "
            f"is missing; {_BUILD} you use."
        ) from None
    return build.TENSORFLOW_VERSION


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
