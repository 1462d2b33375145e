"""Paths of tfembed's libraries, for servers and programs without Python.

A server that serves SavedModels of tfembed needs its ops: TensorFlow's C API
opens the library by `TF_LoadLibrary`, and TensorFlow's C++ loader of
SavedModels then restores the tables. Python programs need `import tfembed`,
which opens the library itself: `tf.saved_model.load` restores the rows by
Python code of tfembed.
"""

from __future__ import annotations

import os

from tfembed.errors import LibraryError
from tfembed.ops import library

__all__ = ["get_lib", "get_tensorflow_version", "get_xla_lib"]


def get_lib() -> str:
    """Returns the path of the library that has the ops and their CPU kernels.

    The library needs `libtensorflow_framework.so.2` of the TensorFlow minor
    version that `get_tensorflow_version` returns, and no Python.
    """
    return os.fspath(library.LIBRARY)


def get_xla_lib() -> str:
    """Returns the path of the library with the XLA kernels of the ops.

    Open it after the library of `get_lib`; SavedModels for CPUs do not need it.

    Raises:
      LibraryError: the library was not built, since this TensorFlow lacks
        headers.
    """
    if not library.XLA_LIBRARY.exists():
        raise LibraryError(
            f"There is no {library.XLA_LIBRARY.name} beside "
            f"{library.LIBRARY.name}: TensorFlow {get_tensorflow_version()} has "
            "not all headers that it takes. TensorFlow 2.16 and 2.20 have them; "
            "serving on CPUs does without."
        )
    return os.fspath(library.XLA_LIBRARY)


def get_tensorflow_version() -> str:
    """Returns the version of TensorFlow that the libraries were built for."""
    return library.built_for()
