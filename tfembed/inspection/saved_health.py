"""The health of the tables of a file, as far as files tell."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from tfembed import errors
from tfembed.inspection.saved_table import Chunk, SavedTable
from tfembed.inspection.saved_tables import open_saved
from tfembed.inspection.table_health import (
    TableHealth,
    as_key,
    largest,
    quantiles,
    spread_rows,
)

__all__ = ["health_of_saved", "saved_path"]

_KINDS = {
    "values": "rows",
    "slots": "slots",
    "notes": "counters",
    "index": "keys",
    "policies": "waiting",
}


def saved_path(source: Any) -> str | None:
    """The path that `source` is or stands for; None where it is none.

    Args:
      source: a path, or what knows its latest checkpoint: an estimator, a
        tf.train.CheckpointManager.

    Raises:
      tfembed.errors.CheckpointError: there is no checkpoint yet.
    """
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    latest = getattr(source, "latest_checkpoint", None)
    if not hasattr(type(source), "latest_checkpoint"):
        return None
    path = latest() if callable(latest) else latest
    if path is None:
        raise errors.CheckpointError(
            f"{source!r} has no checkpoint yet. Save one first."
        )
    return str(path)


def health_of_saved(
    path: str, sample: int, hottest: int
) -> tuple[list[TableHealth], list[str]]:
    """Looks at the tables of a file.

    Args:
      path: as of `open_saved`.
      sample: rows of each table to look at: of keyed tables the first ones of the
        file, which lie in the order of hashes.
      hottest: keys to name, of those rows.

    Returns:
      The health of each, and the names that several tables have.

    Raises:
      tfembed.errors.CheckpointError: there is no such file, it is damaged, or
        has no table.
    """
    saved = open_saved(path)
    if not saved:
        raise errors.CheckpointError(f"There is no table in '{path}'.")
    now = saved.modified or time.time()
    tables = [
        _health(table, _some_rows(table, sample), now, hottest)
        for table in saved.values()
    ]
    return tables, saved.shared_names


def _some_rows(table: SavedTable, sample: int) -> Chunk:
    if table.has_vocabulary:
        positions = spread_rows(table.num_rows, sample)
        taken = {n: c.take(positions) for n, c in table.columns.items()}
        slots = {name: taken[f"slots/{name}"] for name in table.slot_names}
        return Chunk(positions, taken["rows"], slots, None)
    chunks: list[Chunk] = []
    for chunk in table.chunks():
        chunks.append(chunk)
        if sum(map(len, chunks)) >= sample:
            break
    if not chunks:
        nothing = np.zeros((0, table.width))
        return Chunk(np.zeros(0, np.int64), nothing, {}, None)
    counters = [c.counters for c in chunks if c.counters is not None]
    return Chunk(
        np.concatenate([c.keys for c in chunks])[:sample],
        np.concatenate([c.rows for c in chunks])[:sample],
        {
            name: np.concatenate([c.slots[name] for c in chunks])[:sample]
            for name in table.slot_names
        },
        np.concatenate(counters)[:sample] if counters else None,
    )


def _health(
    table: SavedTable, rows: Chunk, now: float, hottest: int
) -> TableHealth:
    norms = np.zeros(0)
    if table.dtype != "string" and table.width:
        numbers = rows.rows.astype(np.float64)
        norms = np.sqrt(np.sum(np.square(numbers), 1))
    is_number = ~np.isnan(norms)
    noted: dict[str, Any] = {}
    worth, by = np.where(is_number, norms, -1), "norm"
    if rows.counters is not None and table.counters == "writes":
        worth, by = rows.counters.astype(np.float64), "touches"
        noted = {"touches": quantiles(worth), "worth_sample": worth}
    elif rows.counters is not None and table.counters:
        ages = rows.counters.astype(np.float64)
        unit = "steps"
        if table.counters == "seconds_since_1970":
            ages, unit = np.maximum(0, now - ages), "seconds"
        worth, by = -ages, f"{unit} since touched"
        noted = {
            "ages": quantiles(ages),
            "age_unit": unit,
            "worth_sample": worth,
        }
    best = largest(worth, hottest)
    return TableHealth(
        name=table.name,
        kind="saved table",
        key_dtype=table.key_dtype,
        dtype=table.dtype,
        width=table.width,
        rows=table.num_rows,
        bytes={
            ours: table.num_bytes.get(theirs, 0)
            for ours, theirs in _KINDS.items()
        },
        shards=len(table.shard_sizes) or None,
        optimizer=table.rule,
        admission=table.policies.get("admission"),
        eviction=table.policies.get("eviction"),
        expiry=table.policies.get("expiry"),
        waiting=table.num_waiting or None,
        looked_at=len(rows),
        norms=quantiles(norms[is_number]),
        nan_rows=int(np.sum(~is_number)),
        never_trained=_never_trained(table, rows),
        hottest=tuple(
            (as_key(rows.keys[i]), abs(float(worth[i])))
            for i in best
            if by != "norm" or worth[i] >= 0
        ),
        hottest_by=by if len(best) else None,
        norm_sample=norms[is_number],
        **noted,
    )


def _never_trained(table: SavedTable, rows: Chunk) -> float | None:
    """The share of rows whose slots are those of a new row."""
    initial = table.slot_initial_values
    known = [
        np.all(slot == np.float32(initial[name]), 1)
        for name, slot in rows.slots.items()
        if name in initial
    ]
    if not known or len(known) < len(rows.slots) or not len(rows):
        return None
    return float(np.mean(np.all(known, 0)))
