"""What a contender's process can be told to do; it times itself."""

from __future__ import annotations

import gc
import pathlib
import shutil
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import machine, measure
from benchmarks.table import readers, training, workload
from benchmarks.table.contenders import CONTENDERS, PRESIZED

BATCHES = 16
_LEAST_SECONDS = 0.1  # Of a turn.


class Session:
    """One contender's table and its work.

    Args:
      contender: a name of `CONTENDERS`.
      threads: that it may use.
    """

    def __init__(self, contender: str, threads: int) -> None:
        if contender not in PRESIZED:
            measure.set_threads(threads)
        self._kind = contender
        self._threads = threads
        self._table: Any = None
        self._keys = np.zeros(0, np.int64)
        self._runs: dict[str, tuple[int, Callable[[], Any]]] = {}

    def fill(
        self,
        width: int,
        n: int,
        kind: str = "random",
        touch: int = 0,
        with_adam: bool = False,
    ) -> dict[str, Any]:
        """Makes a table and inserts n keys, a batch at a time.

        Args:
          width: of a row.
          n: keys.
          kind: of `workload.keys`.
          touch: bytes to write to and give back first, so that the machine has
            them at hand.
          with_adam: whether rows get Adam's slots.

        Returns:
          seconds in all, of the median, the 99th percentile and the slowest
          batch; resident bytes a key; the most bytes that were in use. The
          limit has seconds alone, and NeighborHash, which is given all keys
          at once, nothing.
        """
        self._keys = workload.keys(n, kind)
        values = workload.values(width)
        if self._kind in PRESIZED:
            _touch(touch)
            kind = CONTENDERS[self._kind]
            self._table = kind(width, self._threads, self._keys)
            if self._kind != "limit":
                return {}
            return {"seconds": self._table.insert_seconds()}
        self._table = CONTENDERS[self._kind](width, self._threads)
        if with_adam:
            self._table.attach_adam()
        # What every process needs once does not count.
        self._table.upsert(
            self._table.keys(self._keys[:1]), self._table.array(values[:1])
        )
        # Not before: what is free goes back to a machine's host soon.
        _touch(touch)
        rows = self._table.array(values)  # Not the table's memory.
        before = measure.resident_bytes()
        with measure.PeakMemory() as peak:
            seconds = self._insert(rows)
        grown = measure.resident_bytes() - before
        return {
            "seconds": sum(seconds),
            "median": float(np.median(seconds)),
            "p99": float(np.percentile(seconds, 99)),
            "slowest": max(seconds),
            "bytes_per_key": grown / n,
            "peak": peak.extra,
        }

    def _insert(self, rows: Any) -> list[float]:
        """Seconds of each batch."""
        table, seconds = self._table, []
        for first in range(0, len(self._keys), workload.BATCH):
            batch = table.keys(self._keys[first : first + workload.BATCH])
            part = rows[: len(batch)]
            start = time.perf_counter()
            table.upsert(batch, part)
            seconds.append(time.perf_counter() - start)
        return seconds

    def prepare(
        self,
        name: str,
        work: str,
        form: str,
        threads: int | None = None,
        **batches: Any,
    ) -> None:
        """Makes the run `name`.

        Args:
          name: for `run`.
          work: "find", "upsert" or "accum".
          form: "eager", "call" (one tf.function call a batch) or "loop".
          threads: that the limit uses, its process's if None.
          batches: arguments of `workload.batches`; size: keys of a batch.
        """
        size = batches.pop("size", workload.BATCH)
        count = batches.pop("count", BATCHES)
        keys = workload.batches(self._keys, count, **batches)[:, :size]
        if self._kind == "limit":
            run = self._table.rounds(work, keys, threads)
            self._runs[name] = count, run
            return
        values = self._table.array(workload.values(self._table.width)[:size])
        makers = {"eager": self._eager, "call": self._call, "loop": self._loop}
        if self._kind in PRESIZED:
            form = "eager"
        op = getattr(self._table, work)
        self._runs[name] = count, makers[form](op, keys, values)

    def prepare_training(self, name: str, width: int, keys: int) -> None:
        """Makes the run `name`: lookup, gradient and Adam, a loop of steps."""
        step, sent = training.make(self._kind, self._table, width, keys)
        self._runs[name] = len(sent), lambda: [step(batch) for batch in sent]

    def run(self, name: str) -> float:
        """Seconds a batch of the run `name`, over all its batches.

        They are run again until they took long enough to tell: a process that
        waited for its turn finds its caches empty.
        """
        count, run = self._runs[name]
        rounds, taken = 0, 0.0
        while taken < _LEAST_SECONDS:
            taken += measure.seconds_of(run, tells=self._kind == "limit")
            rounds += 1
        return taken / (rounds * count)

    def write_beside_readers(self, size: int) -> dict[str, float]:
        """What a writer of `size` keys and two readers of them take."""
        return readers.write_beside_readers(
            self._table, self._keys[:size], width=self._table.width
        )

    def round_trip(self) -> float:
        """Seconds a word takes from one thread to another and back; the limit."""
        return machine.round_trip()

    def remove(self) -> float:
        """Seconds that removing a batch takes; the keys are put back."""
        table = self._table
        values = table.array(workload.values(table.width))
        sent = [
            table.keys(self._keys[i * workload.BATCH :][: workload.BATCH])
            for i in range(BATCHES)
        ]
        start = time.perf_counter()
        for batch in sent:
            table.remove(batch)
        seconds = (time.perf_counter() - start) / BATCHES
        for batch in sent:
            table.upsert(batch, values[: len(batch)])
        return seconds

    def export(self) -> float:
        """Seconds that an export of all rows takes."""
        start = time.perf_counter()
        self._table.export()
        return time.perf_counter() - start

    def save(self, folder: str) -> dict[str, float]:
        """Seconds, bytes written, and bytes of memory beyond the table's."""
        shutil.rmtree(folder, ignore_errors=True)
        pathlib.Path(folder).mkdir(parents=True)
        with measure.PeakMemory() as peak:
            start = time.perf_counter()
            self._table.save(folder)
            seconds = time.perf_counter() - start
        files = [p for p in pathlib.Path(folder).rglob("*") if p.is_file()]
        written = sum(path.stat().st_size for path in files)
        return {"seconds": seconds, "bytes": written, "extra": peak.extra}

    def restore(self, folder: str) -> dict[str, float]:
        """Seconds, and bytes of memory beyond the table's."""
        with measure.PeakMemory() as peak:
            start = time.perf_counter()
            self._table.restore(folder)
            seconds = time.perf_counter() - start
        return {"seconds": seconds, "extra": peak.extra}

    def drop(self) -> float:
        """Deletes the table; the share of its memory that went back."""
        before = measure.resident_bytes()
        self._runs.clear()
        self._table = None
        gc.collect()
        return float(before - measure.resident_bytes())

    def _eager(self, op, keys: np.ndarray, values: Any) -> Callable[[], None]:
        table = self._table
        sent = [table.keys(batch) for batch in keys]
        arguments = (values,) if _takes_values(op) else ()

        def run() -> None:
            for batch in sent:
                table.consume(op(batch, *arguments))

        return run

    def _call(self, op, keys: np.ndarray, values: Any) -> Callable[[], None]:
        function = self._table.tf.function(op, autograph=False)
        return self._eager(
            _WithValues(function) if _takes_values(op) else function,
            keys,
            values,
        )

    def _loop(self, op, keys: np.ndarray, values: Any) -> Callable[[], None]:
        tf = self._table.tf
        sent = self._table.keys(keys)
        arguments = (values,) if _takes_values(op) else ()

        @tf.function
        def run() -> Any:
            checksum = tf.constant(0.0)
            for i in tf.range(tf.shape(sent)[0]):
                found = op(sent[i], *arguments)
                if found is not None:
                    checksum += tf.reshape(found, [-1])[0]
            return checksum

        return lambda: self._table.consume(run())


class _WithValues:
    """A function that is called with values as well."""

    takes_values = True

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, keys: Any, values: Any) -> Any:
        return self._function(keys, values)


def _takes_values(op: Any) -> bool:
    if hasattr(op, "takes_values"):
        return op.takes_values
    return getattr(op, "__name__", "") in ("upsert", "accum")


def _touch(size: int) -> None:
    if size:
        block = np.ones(size // 8, np.int64)
        del block
        gc.collect()
