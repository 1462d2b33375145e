"""The health of all tables of a model, or of a file."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import checks, errors
from tfembed.monitoring.found_tables import (
    coming_tables,
    find_tables,
    require_tables,
)
from tfembed.monitoring.table_health import (
    NOT_MADE,
    TableHealth,
    as_key,
    health_of_coming_table,
    health_of_table,
    largest,
    quantiles,
    spread_rows,
)
from tfembed.printing.printed_text import printable_key
from tfembed.printing.text_tables import TextTable
from tfembed.saved.saved_table import Chunk, SavedTable
from tfembed.saved.saved_tables import open_saved
from tfembed.units import as_bytes, as_count, as_number, as_share, counted

__all__ = ["Health", "health", "health_of_saved", "saved_path"]

_KINDS = ("values", "slots", "notes", "index", "policies", "free")


@dataclasses.dataclass(frozen=True, eq=False)
class Health:
    """The health of several tables; `str` and notebooks show it as text tables.

    Attributes:
      tables: the health of each table. Its `name` is the table's name, or its
        path where several tables have that name.
      shared_names: the names that several tables have.
    """

    tables: tuple[TableHealth, ...]
    shared_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.tables)

    def __iter__(self) -> Iterator[TableHealth]:
        return iter(self.tables)

    def __getitem__(self, name: str) -> TableHealth:
        """Returns the health of the table of this name.

        Raises:
          tfembed.errors.MissingTableError: no table has this name.
        """
        for table in self.tables:
            if table.name == name:
                return table
        raise errors.MissingTableError(
            f"There is no table {name!r} among "
            f"{[table.name for table in self.tables]}."
        )

    def since(self, before: Health) -> Health:
        """Returns the tables with their counts since `before`.

        Counts of keys ("hits" and so on) become differences, and `grown` is
        the number of rows by which a table grew. Tables that `before` lacks
        keep their counts.
        """
        known = {table.name: table for table in before.tables}
        return Health(
            tuple(
                table.since(known[table.name]) if table.name in known else table
                for table in self.tables
            ),
            self.shared_names,
        )

    def findings(self) -> list[str]:
        """Sentences about what looks wrong, each with its table's name."""
        return [
            f"{table.name}: {finding}."
            for table in self.tables
            for finding in table.findings()
        ]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Returns all numbers of each table, in types that JSON has."""
        return {table.name: table.to_dict() for table in self.tables}

    def write_summaries(
        self, step: Any, *, prefix: str = "", writer: Any = None
    ) -> None:
        """Writes scalars and histograms for TensorBoard.

        The tags are `<table>/<what>`, so that TensorBoard shows a table's
        curves together: "rows", "grown", "bytes", "hit_rate", "inserted" and
        so on, and histograms of "norms", "ages" and "touches".

        Args:
          step: the step of the summaries.
          prefix: put before the tags, "" or one that ends in "/".
          writer: the writer of `tf.summary.create_file_writer`; None: the
            default one.

        Raises:
          TBNotInstalledError: (of TensorFlow) no TensorBoard; TensorFlow brings
            it up to 2.20, then `pip install tensorboard` does.

        Example:
          with writer.as_default():
            tfembed.health(model).write_summaries(step)
        """
        with contextlib.ExitStack() as stack:
            if writer is not None:
                stack.enter_context(writer.as_default())
            for table in self.tables:
                tag = f"{prefix}{table.name}"
                for name, number in table.scalars().items():
                    tf.summary.scalar(f"{tag}/{name}", number, step=step)
                for name, numbers in table.histograms().items():
                    tf.summary.histogram(f"{tag}/{name}", numbers, step=step)

    def __str__(self) -> str:
        """Returns the health as tables of text."""
        parts = [str(section) for section in self._sections()]
        parts += ["\n".join(self._notes())]
        return "\n\n".join(part for part in parts if part)

    def __repr__(self) -> str:
        rows = sum(table.rows for table in self.tables)
        size = as_bytes(sum(table.total_bytes for table in self.tables))
        return (
            f"<Health of {counted(len(self.tables), 'table')}, {rows:,} rows, {size}; "
            "print it to see more>"
        )

    def _repr_html_(self) -> str:
        """Returns the health as HTML tables, for notebooks."""
        parts = [section.to_html() for section in self._sections()]
        parts += [
            f'<p style="overflow-wrap:anywhere">{html.escape(note)}</p>'
            for note in self._notes()
        ]
        return "".join(parts)

    def _sections(self) -> list[TextTable]:
        return [
            _use(self.tables),
            _rows(self.tables),
            _memory(self.tables),
        ]

    def _notes(self) -> list[str]:
        notes = [
            f"Several tables are called '{name}': they are shown by their paths."
            for name in self.shared_names
        ]
        notes += [
            f"Hottest keys of {table.name}, by {table.hottest_by}: "
            + ", ".join(
                f"{printable_key(key)} ({as_number(amount)})"
                for key, amount in table.hottest
            )
            for table in self.tables
            if table.hottest
        ]
        coming = [t.name for t in self.tables if t.kind == NOT_MADE]
        if coming:
            notes.append(
                f"Not made yet: {', '.join(coming)}. Tables come with the first "
                "step or lookup."
            )
        findings = self.findings()
        return notes + [f"Look at {finding}" for finding in findings]


def health(source: Any, *, sample: int = 100_000, hottest: int = 5) -> Health:
    """Measures the tables of `source`: rows, bytes, lookups and training.

    Tables that the first step makes are listed with 0 rows. Counts of keys are
    exact. Norms, ages, the share of untrained rows and the buckets per search
    come from a sample; `looked_at` is its size. Only the sample is copied, and
    training may go on meanwhile.

    Args:
      source: a Keras model or layer, a `TPUEmbedding` of any kind, a
        `dynamic_embedding.Variable`, a `HashTable`, any other object that
        `tf.train.Checkpoint` saves, a list or dict of these; an estimator or
        tf.train.CheckpointManager, whose latest checkpoint is read; or the
        path of a checkpoint, SavedModel, pair of raw files or '.keras' file. A
        file gives only the numbers that were saved, and its bytes are those on
        disk.
      sample: the number of rows of each table to look at, as if picked by
        chance.
      hottest: the number of keys of each table to name.

    Raises:
      tfembed.errors.ArgumentError: `source` has no table, or a number is not
        allowed.
      tfembed.errors.CheckpointError: the file is missing, damaged or has no
        table.
      tfembed.errors.UnsupportedError: the call is in a tf.function or a graph.

    Example:
      print(tfembed.health(model))
    """
    sample = checks.integer(sample, "sample", least=1)
    hottest = checks.integer(hottest, "hottest", least=0)
    path = saved_path(source)
    if path is not None:
        tables, shared_names = health_of_saved(path, sample, hottest)
        return Health(tuple(tables), tuple(shared_names))
    if not tf.executing_eagerly():
        raise errors.UnsupportedError(
            "`health` gives Python numbers; ask for it in eager mode, outside "
            "of tf.function. In programs with graphs and sessions give it the "
            "path of a checkpoint."
        )
    coming = coming_tables(source)
    found = find_tables(source) if coming else require_tables(source)
    shared = {one.shared_name for one in found if one.shared_name is not None}
    return Health(
        (
            *(health_of_table(one, sample, hottest) for one in found),
            *map(health_of_coming_table, coming),
        ),
        tuple(sorted(shared)),
    )


def _use(tables: tuple[TableHealth, ...]) -> TextTable:
    def line(table: TableHealth) -> tuple[str, ...]:
        counts = table.counts
        bound = f" of {table.max_rows:,}" if table.max_rows else ""
        return (
            table.name,
            f"{table.key_dtype} -> {table.dtype} [{table.width}]",
            f"{table.rows:,}{bound}",
            as_count(table.grown),
            as_count(counts.get("inserted")),
            as_share(table.hit_rate),
            as_count(counts.get("refused") or None),
            as_count(table.waiting),
            as_count(counts.get("evicted") or None),
            as_count(table.skipped_updates or None),
        )

    return TextTable(
        f"{counted(len(tables), 'table')}, {sum(t.rows for t in tables):,} rows, "
        f"{as_bytes(sum(t.total_bytes for t in tables))}",
        (
            "table",
            "keys -> row",
            "rows",
            "grown",
            "inserted",
            "hit rate",
            "refused",
            "waiting",
            "evicted",
            "skipped",
        ),
        [line(table) for table in tables],
    )


def _rows(tables: tuple[TableHealth, ...]) -> TextTable:
    def line(table: TableHealth) -> tuple[str, ...]:
        norms, ages, touches = table.norms, table.ages, table.touches
        unit = table.age_unit
        return (
            table.name,
            as_count(table.looked_at or None),
            as_share(table.never_trained),
            as_number(norms.get("p5")),
            as_number(norms.get("median")),
            as_number(norms.get("p95")),
            as_number(norms.get("max")),
            as_count(table.nan_rows or None),
            as_number(touches.get("median")),
            as_number(touches.get("max")),
            f"{as_number(ages['median'])} {unit}" if ages else "",
            f"{as_number(ages['max'])} {unit}" if ages else "",
            as_share(table.expiring),
        )

    return TextTable(
        "Rows, by those looked at",
        (
            "table",
            "looked at",
            "never trained",
            "norm: p5",
            "median",
            "p95",
            "max",
            "with NaN",
            "touches: median",
            "most",
            "age: median",
            "oldest",
            "expiring",
        ),
        [line(table) for table in tables],
    )


def _memory(tables: tuple[TableHealth, ...]) -> TextTable:
    def line(table: TableHealth) -> tuple[str, ...]:
        probes = ""
        if table.mean_probe is not None:
            probes = f"{table.mean_probe:.2f}, at most {table.longest_probe}"
        return (
            table.name,
            as_bytes(table.total_bytes),
            as_bytes(table.bytes_per_row),
            *(as_bytes(table.bytes.get(kind) or None) for kind in _KINDS),
            as_share(table.load_factor),
            probes,
        )

    return TextTable(
        "Memory",
        ("table", "bytes", "a row", *_KINDS, "index full", "probes"),
        [line(table) for table in tables],
    )


_KINDS_IN_FILES = {
    "values": "rows",
    "slots": "slots",
    "notes": "counters",
    "index": "keys",
    "policies": "waiting",
}


def saved_path(source: Any) -> str | None:
    """Returns the path that `source` is or stands for; None for other objects.

    Args:
      source: a path, or an object with a latest checkpoint: an estimator or a
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
    """Measures the tables of a file.

    Args:
      path: as for `open_saved`.
      sample: the number of rows of each table to look at; of a keyed table the
        first rows of the file, which are in the order of hashes.
      hottest: the number of keys to name, among those rows.

    Returns:
      The health of each table, and the names that several tables have.

    Raises:
      tfembed.errors.CheckpointError: the file is missing, damaged or has no
        table.
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
            for ours, theirs in _KINDS_IN_FILES.items()
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
    """Returns the share of rows whose slots have their initial values."""
    initial = table.slot_initial_values
    known = [
        np.all(slot == np.float32(initial[name]), 1)
        for name, slot in rows.slots.items()
        if name in initial
    ]
    if not known or len(known) < len(rows.slots) or not len(rows):
        return None
    return float(np.mean(np.all(known, 0)))
