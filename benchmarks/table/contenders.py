"""The tables that are compared, each behind the same few methods."""

from __future__ import annotations

import abc
import copy
import ctypes
import os
import pathlib
import subprocess
import tempfile
from typing import Any

import numpy as np

from benchmarks.table import workload

SOURCE = pathlib.Path(__file__).with_name("limit.cc")


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


class Limit(Contender):
    """limit.cc, which takes no TensorFlow."""

    def __init__(self, width: int, threads: int, *, capacity: int) -> None:
        super().__init__(width, threads)
        self._library = _compile()
        self._table = ctypes.c_void_p(
            self._library.limit_new(
                ctypes.c_int64(capacity), ctypes.c_int64(width)
            )
        )
        self._out = np.zeros((1 << 16, width), np.float32)

    def array(self, numpy: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(numpy)

    def consume(self, found: np.ndarray | None) -> None:
        """Nothing to wait for."""

    def find(self, keys: np.ndarray) -> np.ndarray:
        self._access(keys, self._out, write=False)
        return self._out

    def upsert(self, keys: np.ndarray, values: np.ndarray) -> None:
        self._access(keys, values, write=True)

    def with_threads(self, threads: int) -> Limit:
        """The same table, for another number of threads."""
        view = copy.copy(self)
        view.threads = threads
        return view

    def parts(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys in the order of the threads that own them, and how many each."""
        owners = np.empty(len(keys), np.int32)
        self._library.limit_owners(
            self._table, _at(keys), _count(keys), self.threads, _at(owners)
        )
        counts = np.bincount(owners, minlength=self.threads).astype(np.int64)
        return keys[np.argsort(owners, kind="stable")], counts

    def insert(
        self, keys: np.ndarray, counts: np.ndarray, values: np.ndarray
    ) -> None:
        """Inserts distinct keys that `parts` dealt, into the empty table."""
        self._library.limit_insert(
            self._table,
            _at(keys),
            _at(counts),
            self.threads,
            _at(values),
            _count(values),
        )

    def round_trip(self) -> float:
        """Seconds that a word takes from one thread to another and back."""
        return self._library.limit_round_trip() * 1e-9

    def _access(
        self, keys: np.ndarray, values: np.ndarray, *, write: bool
    ) -> None:
        self._library.limit_access(
            self._table,
            _at(keys),
            _count(keys),
            _at(values),
            self.threads,
            int(write),
        )


def _compile() -> ctypes.CDLL:
    out = pathlib.Path(tempfile.mkdtemp(prefix="tfembed_limit_")) / "limit.so"
    flags = "-O3 -march=native -std=c++17 -shared -fPIC -pthread"
    subprocess.run(
        ["g++", *flags.split(), str(SOURCE), "-o", str(out)], check=True
    )
    library = ctypes.CDLL(str(out))
    library.limit_new.restype = ctypes.c_void_p
    library.limit_round_trip.restype = ctypes.c_double
    return library


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
    "tfembed strings": TfembedStrings,
    "TFRA": Tfra,
    "Dense": dense,
    "Mutable": mutable,
    "limit": Limit,
}
