"""The plain C++ limit (limit.cc), called on the same arrays."""

from __future__ import annotations

import ctypes
import pathlib
import subprocess
import tempfile

import numpy as np

from benchmarks import workloads

SOURCE = pathlib.Path(__file__).with_name("limit.cc")


def load() -> ctypes.CDLL:
    """Compiles limit.cc for this very machine and loads it."""
    out = pathlib.Path(tempfile.mkdtemp(prefix="tfembed_limit_")) / "limit.so"
    flags = "-O3 -march=native -ffast-math -std=c++17 -shared -fPIC -pthread"
    subprocess.run(
        ["g++", *flags.split(), str(SOURCE), "-o", str(out)], check=True
    )
    library = ctypes.CDLL(str(out))
    library.limit_step.restype = ctypes.c_int
    return library


def _address(array: np.ndarray | None):
    return None if array is None else array.ctypes.data_as(ctypes.c_void_p)


class Tables:
    """26 tables and their Adagrad accumulators in one array each."""

    def __init__(self, library: ctypes.CDLL, vocabulary: int, width: int):
        self.library, self.vocabulary, self.width = library, vocabulary, width
        shape = (workloads.FEATURES * vocabulary, width)
        self.values = np.full(shape, 0.01, np.float32)
        self.slots = np.full(shape, 0.1, np.float32)
        bags = workloads.BATCH * workloads.FEATURES
        self.out = np.zeros((bags, width), np.float32)
        self.gradients = np.full((bags, width), 1e-3, np.float32)

    def step(self, batch: workloads.Batch, *, train: bool) -> None:
        done = self.library.limit_step(
            self.width,
            _address(batch.ids),
            _address(batch.splits),
            workloads.FEATURES,
            workloads.BATCH,
            ctypes.c_int64(self.vocabulary),
            _address(self.values),
            _address(self.slots),
            _address(self.out),
            _address(self.gradients if train else None),
        )
        assert done, f"limit.cc has no width {self.width}"
