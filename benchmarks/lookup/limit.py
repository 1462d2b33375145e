"""The plain C++ limit (limit.cc), called on the same arrays."""

from __future__ import annotations

import ctypes
import pathlib
import subprocess
import tempfile
from collections.abc import Sequence

import numpy as np

from benchmarks.lookup import contender
from benchmarks.lookup.contender import Contender, Round
from benchmarks.lookup.workload import Batch, Tables

SOURCE = pathlib.Path(__file__).with_name("limit.cc")


class Limit(Contender):
    """All tables in one array, on huge pages, which NumPy asks for."""

    def __init__(self, tables: Tables, threads: int) -> None:
        super().__init__(tables, threads)
        self._library = _compile()
        shape = (tables.count * tables.rows, tables.width)
        self._values = np.full(shape, contender.VALUE, np.float32)
        self._slots = None
        if tables.rule:
            self._slots = np.full(
                shape, contender.FIRST_ACCUMULATOR, np.float32
            )

    def rounds(
        self, batches: Sequence[Batch], form: str, *, train: bool
    ) -> Round:
        shape = (batches[0].size * self.tables.features, self.tables.width)
        out = np.zeros(shape, np.float32)
        gradient = np.full(shape, contender.GRADIENT, np.float32)

        def run() -> None:
            for batch in batches:
                self._step(batch, out, gradient if train else None)

        return run

    def values(self) -> np.ndarray:
        return self._values.reshape(self.tables.count, -1, self.tables.width)

    def _step(
        self, batch: Batch, out: np.ndarray, gradient: np.ndarray | None
    ) -> None:
        done = self._library.limit_step(
            self.tables.width,
            self.threads,
            _address(batch.ids),
            _address(batch.splits),
            batch.features,
            batch.size,
            ctypes.c_int64(self.tables.rows),
            _address(self._values),
            _address(self._slots),
            _address(out),
            _address(gradient),
        )
        assert done, f"limit.cc has no width {self.tables.width}"


def _compile() -> ctypes.CDLL:
    out = pathlib.Path(tempfile.mkdtemp(prefix="tfembed_limit_")) / "limit.so"
    flags = (
        "-O3 -march=native -mprefer-vector-width=512 -fno-math-errno "
        "-fno-trapping-math -std=c++17 -shared -fPIC -pthread"
    )
    subprocess.run(
        ["g++", *flags.split(), str(SOURCE), "-o", str(out)], check=True
    )
    library = ctypes.CDLL(str(out))
    library.limit_step.restype = ctypes.c_int
    return library


def _address(array: np.ndarray | None) -> ctypes.c_void_p | None:
    return None if array is None else array.ctypes.data_as(ctypes.c_void_p)
