"""The tables that are compared, each behind the same few methods."""

from __future__ import annotations

import abc
import ctypes
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.table import workload

BEFORE = "TFEMBED_BENCHMARK_BEFORE"
_KEY_BYTES = 8
_INDEX_BYTES = 12  # Of a key and a row's number.
_NEIGHBOR_HASH = pathlib.Path(__file__).with_name("neighbor_hash.cc")
_NEIGHBOR_LOAD = 0.8  # As in the paper.
_PLACE_BYTES = 16
# These are given all their keys at once, and take no TensorFlow.
PRESIZED = ("limit", "NeighborHash")


class Contender(abc.ABC):
    """One table of float32 rows; keys and values are what `array` gives.

    Args:
      width: of a row.
      threads: that it may use.
    """

    def __init__(self, width: int, threads: int) -> None:
        self.width = width
        self.threads = threads

    @abc.abstractmethod
    def array(self, numpy: np.ndarray) -> Any:
        """The form in which the table takes arrays."""

    def keys(self, numpy: np.ndarray) -> Any:
        """The form in which the table takes int64 keys, or stands for them."""
        return self.array(numpy)

    @abc.abstractmethod
    def find(self, keys: Any) -> Any:
        """Rows of keys."""

    @abc.abstractmethod
    def upsert(self, keys: Any, values: Any) -> Any:
        """Writes rows."""

    @abc.abstractmethod
    def consume(self, found: Any) -> None:
        """Waits for a result."""


class TensorFlowTable(Contender):
    """What the contenders inside of TensorFlow share."""

    def __init__(self, width: int, threads: int) -> None:
        import tensorflow as tf

        super().__init__(width, threads)
        self.tf = tf

    def array(self, numpy: np.ndarray) -> Any:
        return self.tf.constant(numpy)

    def consume(self, found: Any) -> None:
        # One number, without an op: that would cost 0.2 ms of its own.
        if found is not None and found.shape.rank:
            memoryview(found)[(0,) * found.shape.rank]


class VariableTable(TensorFlowTable):
    """`dynamic_embedding.Variable`, tfembed's or TFRA's."""

    def __init__(
        self, module: Any, width: int, threads: int, **options
    ) -> None:
        super().__init__(width, threads)
        options = {
            "key_dtype": self.tf.int64,
            "initializer": 0.0,
            "devices": ["/CPU:0"],
            **options,
        }
        self.variable = module.Variable(
            value_dtype=self.tf.float32,
            dim=width,
            name=f"bench_{width}",
            **options,
        )
        # What `accum` subtracts, and that all keys are there.
        self._old: Any = None
        self._exist: Any = None

    def find(self, keys: Any) -> Any:
        return self.variable.lookup(keys)

    def upsert(self, keys: Any, values: Any) -> Any:
        self.variable.upsert(keys, values)

    def accum(self, keys: Any, values: Any) -> Any:
        if self._old is None or self._old.shape != values.shape:
            with self.tf.init_scope():
                self._old = self.tf.zeros(values.shape)
                self._exist = self.tf.ones(values.shape[:1], self.tf.bool)
        self.variable.accum(keys, self._old, values, self._exist)

    def remove(self, keys: Any) -> Any:
        self.variable.remove(keys)

    def export(self) -> int:
        keys, rows = self.variable.export()
        self.consume(rows)
        return int(keys.shape[0])


class Tfembed(VariableTable):
    """tfembed.dynamic_embedding.Variable."""

    def __init__(self, width: int, threads: int, **options) -> None:
        import tfembed

        super().__init__(tfembed.dynamic_embedding, width, threads, **options)

    def attach_adam(self) -> None:
        """Lays Adam's slots out beside each row."""
        from tfembed import optimizers

        self.variable.table.attach(optimizers.Adam())

    def save(self, folder: str) -> None:
        self.tf.train.Checkpoint(table=self.variable).write(f"{folder}/table")
        _sync(folder)

    def restore(self, folder: str) -> None:
        checkpoint = self.tf.train.Checkpoint(table=self.variable)
        checkpoint.read(f"{folder}/table").assert_consumed()


class Before(Tfembed):
    """The same of another checkout, which the variable BEFORE names."""

    def __init__(self, width: int, threads: int) -> None:
        sys.path.insert(0, os.environ[BEFORE])
        super().__init__(width, threads)


class TfembedStrings(Tfembed):
    """The same by strings of 16 bytes, each key's hexadecimal digits."""

    def __init__(self, width: int, threads: int) -> None:
        super().__init__(width, threads, key_dtype="string")

    def keys(self, numpy: np.ndarray) -> Any:
        return self.array(workload.names(numpy))


class Tfra(VariableTable):
    """TFRA's dynamic_embedding.Variable; its own interpreter has it."""

    def __init__(self, width: int, threads: int, **options) -> None:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        import tensorflow_recommenders_addons as tfra

        super().__init__(tfra.dynamic_embedding, width, threads, **options)

    def save(self, folder: str) -> None:
        self.variable.save_to_file_system(folder)
        _sync(folder)

    def restore(self, folder: str) -> None:
        self.variable.clear()
        self.variable.load_from_file_system(folder)


class LookupTable(TensorFlowTable):
    """One of TensorFlow's own tables."""

    def __init__(self, table: Any, width: int, threads: int) -> None:
        super().__init__(width, threads)
        self.table = table

    def find(self, keys: Any) -> Any:
        return self.table.lookup(keys)

    def upsert(self, keys: Any, values: Any) -> Any:
        self.table.insert(keys, values)


def dense(width: int, threads: int) -> LookupTable:
    """tf.lookup.experimental.DenseHashTable."""
    import tensorflow as tf

    table = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.float32, tf.zeros([width]), empty_key=0, deleted_key=-1
    )
    return LookupTable(table, width, threads)


def mutable(width: int, threads: int) -> LookupTable:
    """tf.lookup.experimental.MutableHashTable."""
    import tensorflow as tf

    table = tf.lookup.experimental.MutableHashTable(
        tf.int64, tf.float32, tf.zeros([width])
    )
    return LookupTable(table, width, threads)


class Limit:
    """The time that the machine takes for a batch's lines and bytes alone.

    A key and its row are 8 + 4 width bytes and lie in so many lines at least,
    whatever the table; a key that is missing costs one. A find reads these, a
    write changes them or writes them whole, and keys and rows are read from the
    batch or written to it (`machine.py`).

    Args:
      width: of a row.
      threads: that share each batch.
      keys: distinct ones, which are there.
    """

    def __init__(self, width: int, threads: int, keys: np.ndarray) -> None:
        self.width = width
        self.threads = threads
        self._keys = np.sort(keys)
        self._lines = machine.lines_of(_KEY_BYTES + 4 * width)
        size = len(keys) * self._lines * machine.LINE
        self._arena = machine.Arena(size)

    def rounds(
        self, work: str, batches: np.ndarray, threads: int | None = None
    ) -> Callable[[], float]:
        """Tells the seconds of a round of batches, [count, keys] of them.

        Args:
          work: "find" or "upsert".
          batches: keys.
          threads: in place of the limit's own.
        """
        threads = threads or self.threads
        kinds = {
            "find": [machine.READ],
            "upsert": [machine.UPDATE, machine.OVERWRITE],
        }[work]
        rows = np.zeros((batches.shape[1], self.width), np.float32)
        none = np.zeros(0, np.float32)
        given, taken = (none, rows) if work == "find" else (rows, none)
        stream = machine.Stream(batches, given, taken, len(batches), threads)
        firsts = [self._first_lines(batch) for batch in batches]
        moved = []
        for lines, stretches in (
            (self._lines, [present for present, _ in firsts]),
            (1, [missing for _, missing in firsts]),
        ):
            if any(map(len, stretches)):
                one = machine.Lines(
                    [self._arena], stretches, lines, kinds, threads
                )
                moved.append(one)
        return lambda: max(sum(m.seconds() for m in moved), stream.seconds())

    def insert_seconds(self) -> float:
        """Of all keys into new memory: its pages, its bytes and a line a key.

        Rows may be written one after the other, but each key goes to a position of
        its own in an index of at least a key and a row's number. Both are memory
        that the system has yet to give: it clears the pages on the threads that
        touch them first, which bring no line meanwhile, so the times add up.
        Meanwhile the batches' keys and rows are read.
        """
        n = len(self._keys)
        fresh = machine.fresh_seconds(
            n * (_INDEX_BYTES + 4 * self.width), self.threads
        )
        rows = np.zeros((workload.BATCH, self.width), np.float32)
        none = np.zeros(0, np.float32)
        count = -(-n // workload.BATCH)
        read = machine.Stream(self._keys, rows, none, count, self.threads)
        index = machine.Arena(n * _INDEX_BYTES)
        lines = index.size // machine.LINE
        rng = np.random.default_rng(3)
        batches = [
            np.unique(rng.integers(0, lines, min(workload.BATCH, n - first)))
            for first in range(0, n, workload.BATCH)
        ]
        for batch in batches:
            rng.shuffle(batch)
        moved = machine.Lines(
            [index], batches, 1, [machine.UPDATE], self.threads
        )
        return fresh + max(moved.seconds(), read.seconds())

    def _first_lines(self, batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of distinct keys, those that are there and those that are not."""
        every = np.unique(batch)
        np.random.default_rng(4).shuffle(every)
        places = np.searchsorted(self._keys, every)
        places[places == len(self._keys)] = 0
        is_there = self._keys[places] == every
        return (
            places[is_there] * self._lines,
            every[~is_there] % len(self._keys) * self._lines,
        )


class NeighborHash(Contender):
    """neighbor_hash.cc: finds in a table of a fixed size, no TensorFlow."""

    def __init__(self, width: int, threads: int, keys: np.ndarray) -> None:
        super().__init__(width, threads)
        self._library = machine.compiled(_NEIGHBOR_HASH)
        self._library.neighbor_insert.restype = ctypes.c_int64
        self._size = int(len(keys) / _NEIGHBOR_LOAD)
        self._places = machine.Arena(self._size * _PLACE_BYTES)
        self._places.array()[:] = 0
        self._rows = machine.Arena(len(keys) * width * 4)
        rows = workload.values(width)
        stored = self._rows.array()[: len(keys) * width * 4]
        stored = stored.view(np.float32).reshape(-1, width)
        for first in range(0, len(keys), len(rows)):
            part = stored[first : first + len(rows)]
            part[:] = rows[: len(part)]
        inserted = self._library.neighbor_insert(
            *self._index(), _at(keys), _count(keys)
        )
        if inserted < len(keys):
            raise MemoryError(f"No near place for key {inserted:,}.")
        self._out = np.zeros((workload.BATCH, width), np.float32)

    def array(self, numpy: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(numpy)

    def consume(self, found: np.ndarray | None) -> None:
        """Nothing to wait for."""

    def upsert(self, keys: np.ndarray, values: np.ndarray) -> None:
        raise NotImplementedError("NeighborHash is here for its finds.")

    def find(self, keys: np.ndarray) -> np.ndarray:
        self._library.neighbor_find(
            *self._index(),
            ctypes.c_void_p(self._rows.address),
            ctypes.c_int64(self.width),
            _at(keys),
            _count(keys),
            _at(self._out),
            self.threads,
        )
        return self._out[: len(keys)]

    def _index(self) -> tuple[ctypes.c_void_p, ctypes.c_int64]:
        return ctypes.c_void_p(self._places.address), ctypes.c_int64(self._size)


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _count(array: np.ndarray) -> ctypes.c_int64:
    return ctypes.c_int64(len(array))


def _sync(folder: str) -> None:
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


CONTENDERS = {
    "tfembed": Tfembed,
    "before": Before,
    "tfembed strings": TfembedStrings,
    "TFRA": Tfra,
    "Dense": dense,
    "Mutable": mutable,
    "limit": Limit,
    "NeighborHash": NeighborHash,
}
