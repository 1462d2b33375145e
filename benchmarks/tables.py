"""Workload B: a hash table of many keys, one batch at a time."""

from __future__ import annotations

import gc
import time

import numpy as np
import tensorflow as tf

from benchmarks import limit, measure, workloads
from tfembed.tables import HashTable

BATCH = 65_536
WIDTHS = (8, 64)


def run(
    rows: list[tuple], memory: list[tuple], *, keys: int, rounds: int
) -> None:
    """Appends (workload, {contender: M keys/s}) and bytes-per-key rows."""
    library = limit.load()
    all_keys = workloads.distinct_keys(keys)
    for width in WIDTHS:
        values = np.random.default_rng(1).random((BATCH, width), np.float32)
        contenders = {
            "tfembed": HashTable(width, name=f"bench_{width}"),
            "Dense": _dense(width),
            "Mutable": _mutable(width),
        }
        insert = {}
        for name, table in contenders.items():
            before, start = measure.resident_bytes(), time.perf_counter()
            _insert(table, all_keys, values)
            insert[name] = keys / (time.perf_counter() - start) / 1e6
            grown = (measure.resident_bytes() - before) / keys
            memory.append((f"width {width}", name, grown))
        rows.append((f"insert, growing, width {width}", insert))
        floor = limit.Hash(library, all_keys, width)
        batches = _batches(all_keys, count=rounds + 2)
        for write in (False, True):
            runs = _runs(contenders, floor, batches, values, write=write)
            seconds = measure.medians(runs, rounds=rounds)
            work = "upsert existing" if write else "find, all present"
            rates = {k: BATCH / s / 1e6 for k, s in seconds.items()}
            rows.append((f"{work}, width {width}", rates))
        contenders = floor = runs = None
        gc.collect()


def _runs(contenders, floor: limit.Hash, batches, values, *, write: bool):
    sent = tf.constant(values)
    tensors = [tf.constant(b) for b in batches]
    buffer = values.copy() if write else np.empty_like(values)
    runs = {"limit": lambda i: floor.access(batches[i], buffer, write=write)}
    for name, table in contenders.items():
        runs[name] = _runner(table, tensors, sent, write=write)
    return runs


def _dense(width: int):
    return tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.float32, tf.zeros([width]), empty_key=-1, deleted_key=-2
    )


def _mutable(width: int):
    return tf.lookup.experimental.MutableHashTable(
        tf.int64, tf.float32, tf.zeros([width])
    )


def _insert(table, keys: np.ndarray, values: np.ndarray) -> None:
    put = table.upsert if isinstance(table, HashTable) else table.insert
    for start in range(0, len(keys), BATCH):
        batch = keys[start : start + BATCH]
        put(tf.constant(batch), tf.constant(values[: len(batch)]))


def _batches(keys: np.ndarray, *, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.choice(keys, BATCH) for _ in range(count)]


def _runner(table, tensors, sent, *, write: bool):
    if not write:
        if isinstance(table, HashTable):
            return lambda i: table.lookup(tensors[i])[0][0, 0].numpy()
        return lambda i: table.lookup(tensors[i])[0, 0].numpy()
    put = table.upsert if isinstance(table, HashTable) else table.insert
    return lambda i: put(tensors[i], sent)
