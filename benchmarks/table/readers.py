"""A writer beside two readers of the same batch: times, and torn lookups."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

import numpy as np

from benchmarks.table.cases import Plan, Results, add_bar

_WIDTH = 16
_SIZES = (1_000, 65_536, 262_144)  # The last one is written in parts.
_PART = 131_072
_READERS = 2
_SECONDS = 3.0


def run(plan: Plan, results: Results) -> None:
    """Beside TensorFlow's own tables, and beside another checkout of tfembed.

    All write and read at once, in one process each; contenders take turns.
    """
    for size in _SIZES:
        figures: dict[str, list[dict[str, float]]] = {}
        with plan.workers("tfembed", "before", "Mutable", "Dense") as workers:
            for worker in workers.values():
                worker.call("fill", width=_WIDTH, n=max(_SIZES))
            for _ in range(plan.rounds):
                for name, worker in workers.items():
                    found = worker.call("write_beside_readers", size=size)
                    figures.setdefault(name, []).append(found)
        what = f"of {size:,} keys beside {_READERS} readers"
        for name, rounds in figures.items():
            median = {
                key: statistics.median(x[key] for x in rounds)
                for key in rounds[0]
            }
            for label, value, unit in (
                (f"upsert {what}", median["seconds"] * 1e3, "ms"),
                (f"lookups {what}", median["lookups"], "a second"),
                (f"torn lookups {what}", median["torn"] * 100, "%"),
            ):
                results.figures.append((label, name, value, unit))
        torn = max(x["torn"] for x in figures["tfembed"])
        name = f"torn lookups {what}, per cent"
        cells = (("most", torn * 100),)
        add_bar(results, name, 0.0, cells, at_most=True, is_sum=True)


def write_beside_readers(
    table: Any, keys: np.ndarray, *, width: int
) -> dict[str, float]:
    """Upserts a batch for some seconds while threads look it up.

    Args:
      table: a contender that has the keys.
      keys: of the batch, distinct.
      width: of a row.

    Returns:
      seconds of the median upsert; lookups a second; the share of lookups that
      found rows of two upserts among the same 131,072 keys.
    """
    batch = table.keys(keys)
    rows = [table.array(np.full((len(keys), width), x, "f")) for x in (1, 2)]
    stop = threading.Event()
    torn: list[bool] = []

    def read() -> None:
        while not stop.is_set():
            first = np.asarray(table.find(batch))[:, 0]
            parts = (first[i : i + _PART] for i in range(0, len(keys), _PART))
            torn.append(any(part.min() != part.max() for part in parts))

    table.upsert(batch, rows[0])
    readers = [threading.Thread(target=read) for _ in range(_READERS)]
    for reader in readers:
        reader.start()
    seconds: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < _SECONDS:
        start = time.perf_counter()
        table.upsert(batch, rows[len(seconds) % 2])
        seconds.append(time.perf_counter() - start)
    taken = time.perf_counter() - begin
    stop.set()
    for reader in readers:
        reader.join()
    return {
        "seconds": statistics.median(seconds),
        "lookups": len(torn) / taken,
        "torn": sum(torn) / max(1, len(torn)),
    }
