"""Paths of tfembed's libraries, for servers and programs without Python.

A server that serves SavedModels of tfembed needs its ops: TensorFlow's C API
opens the library by `TF_LoadLibrary`, and TensorFlow's C++ loader of
SavedModels then restores the tables. Python programs need `import tfembed`,
which opens the library itself: `tf.saved_model.load` restores the rows by
Python code of tfembed.

Programs in C that look rows up in the files of `tfembed.export.to_stock` need
neither: they include `tfembed_sealed.h` and link the library of
`get_sealed_lib`.
"""

from __future__ import annotations

import os
import pathlib

from tfembed.errors import LibraryError
from tfembed.ops import library

__all__ = [
    "get_include",
    "get_lib",
    "get_sealed_lib",
    "get_sealed_link_flags",
    "get_tensorflow_version",
    "get_xla_lib",
]

_PACKAGE = pathlib.Path(__file__).parent


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


def get_include() -> str:
    """Returns the folder of `tfembed_sealed.h`."""
    installed = _PACKAGE / "include"
    in_checkout = _PACKAGE.parent / "cc" / "sealed"
    return os.fspath(installed if installed.exists() else in_checkout)


def get_sealed_lib() -> str:
    """Returns the path of the library that `tfembed_sealed.h` describes.

    The library needs the C and C++ libraries of the system alone.
    """
    return os.fspath(library.SEALED_LIBRARY)


def get_sealed_link_flags() -> list[str]:
    """Returns the flags by which a compiler links the sealed library."""
    folder, name = library.SEALED_LIBRARY.parent, library.SEALED_LIBRARY.name
    return [f"-L{folder}", f"-l:{name}", f"-Wl,-rpath,{folder}"]
