"""The limit of all contenders: the machine's own rates (machine.cc).

A step must bring each distinct cache line of the rows that it uses, and read or
write its ids, gradients and activations. The least time it can take is that of
the lines at the rate at which this machine brings these lines, or that of the
bytes at its stream rate, whichever is longer: a program may overlap the two.
Both rates are measured in turns with the contenders, by as many threads, on the
lines and buffers of the same batches, so that what stays in the caches between
two steps counts as the caches give it.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
import subprocess
import tempfile
from collections.abc import Sequence

import numpy as np

SOURCE = pathlib.Path(__file__).with_name("machine.cc")
LINE = 64
READ, UPDATE, OVERWRITE = range(3)
_TRIES = 2  # Rounds of each way, to find the fastest one.


def lines_of(row_bytes: int) -> int:
    """The fewest cache lines that so many bytes lie in."""
    return -(-row_bytes // LINE)


class Arena:
    """Memory on huge pages; as a table's rows, it is written to.

    Args:
      size: bytes.
      fresh: whether the system has yet to give the memory.
    """

    def __init__(self, size: int, *, fresh: bool = False) -> None:
        self.size = -(-size // (2 << 20)) * (2 << 20)
        self._library = library()
        self.address = self._library.machine_arena(
            ctypes.c_int64(self.size), int(fresh)
        )
        if not self.address:
            raise MemoryError(f"The limit has no {self.size:,} bytes.")

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._library.machine_free(
                ctypes.c_void_p(self.address), ctypes.c_int64(self.size)
            )

    def array(self) -> np.ndarray:
        """The bytes, not copied."""
        buffer = (ctypes.c_char * self.size).from_address(self.address)
        return np.frombuffer(buffer, np.uint8)


class Lines:
    """A round of batches of random stretches of some lines each.

    Args:
      arenas: whose lines are moved, the same of each.
      batches: the first line of each stretch, distinct in a batch.
      lines: of a stretch.
      kinds: what may be done to them, the fastest of which is the limit's.
      threads: that share each batch.
    """

    def __init__(
        self,
        arenas: Sequence[Arena],
        batches: Sequence[np.ndarray],
        lines: int,
        kinds: Sequence[int],
        threads: int,
    ) -> None:
        self._arenas = list(arenas)
        self._first = np.concatenate(batches).astype(np.uint32)
        self._begins = np.cumsum([0, *map(len, batches)]).astype(np.int64)
        self._lines = lines
        self._threads = threads
        self._library = library()
        ways = [
            (kind, way)
            for kind in kinds
            for way in range(self._library.machine_num_ways())
        ]
        self._way = min(
            ways, key=lambda way: min(self._run(*way) for _ in range(_TRIES))
        )

    @property
    def moved(self) -> int:
        """Lines of a round."""
        return len(self._first) * self._lines * len(self._arenas)

    def seconds(self) -> float:
        """Of a round, now."""
        return self._run(*self._way)

    def _run(self, kind: int, way: int) -> float:
        addresses = (ctypes.c_void_p * len(self._arenas))(
            *(arena.address for arena in self._arenas)
        )
        return self._library.machine_lines(
            addresses,
            len(self._arenas),
            _at(self._first),
            _at(self._begins),
            len(self._begins) - 1,
            self._lines,
            kind,
            way,
            self._threads,
        )


class Stream:
    """A round of batches of bytes that lie one after the other.

    Args:
      read: what is read once a round, each batch its part.
      again: what each batch reads whole.
      written: what each batch writes whole.
      batches: how many.
      threads: that share each batch.
    """

    def __init__(
        self,
        read: np.ndarray,
        again: np.ndarray,
        written: np.ndarray,
        batches: int,
        threads: int,
    ) -> None:
        self._arrays = [np.ascontiguousarray(read), again, written]
        self._batches = batches
        self._threads = threads
        self._library = library()
        self._past_caches = min(
            (0, 1), key=lambda way: min(self._run(way) for _ in range(_TRIES))
        )

    @property
    def moved(self) -> int:
        """Bytes of a round."""
        once, *each = (array.nbytes for array in self._arrays)
        return once + self._batches * sum(each)

    def seconds(self) -> float:
        """Of a round, now."""
        return self._run(self._past_caches)

    def _run(self, past_caches: int) -> float:
        arguments = []
        for array in self._arrays:
            arguments += [_at(array), ctypes.c_int64(array.nbytes)]
        return self._library.machine_stream(
            *arguments, self._batches, past_caches, self._threads
        )


def fresh_seconds(size: int, threads: int) -> float:
    """Seconds to write so many bytes of memory that the system has yet to give."""
    arena = Arena(size, fresh=True)
    none = ctypes.c_void_p(), ctypes.c_int64(0)
    return library().machine_stream(
        *none,
        *none,
        ctypes.c_void_p(arena.address),
        ctypes.c_int64(arena.size),
        1,
        0,
        threads,
    )


def round_trip() -> float:
    """Seconds that a word takes from one thread to another and back."""
    return library().machine_round_trip() * 1e-9


@functools.cache
def library() -> ctypes.CDLL:
    """machine.cc, compiled for this machine."""
    loaded = compiled(SOURCE)
    loaded.machine_arena.restype = ctypes.c_void_p
    for name in ("machine_lines", "machine_stream", "machine_round_trip"):
        getattr(loaded, name).restype = ctypes.c_double
    return loaded


def compiled(source: pathlib.Path) -> ctypes.CDLL:
    """A C++ file as a library with this machine's instructions."""
    flags = "-O3 -march=native -std=c++17 -shared -fPIC -pthread"
    with tempfile.TemporaryDirectory(prefix="tfembed_benchmark_") as folder:
        out = f"{folder}/{source.stem}.so"
        subprocess.run(
            ["g++", *flags.split(), str(source), "-o", out], check=True
        )
        return ctypes.CDLL(out)  # Stays loaded when its file goes.


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
