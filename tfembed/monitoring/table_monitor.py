"""A Keras callback that watches the tables of a model while it trains.

`write_projector` writes rows as files for TensorBoard's projector.
"""

from __future__ import annotations

import os
import pathlib
import re
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfembed import checks, errors
from tfembed.monitoring.found_tables import (
    FoundTable,
    find_tables,
    require_tables,
)
from tfembed.monitoring.health import Health, health
from tfembed.monitoring.table_health import (
    as_key,
    gather_rows,
    hottest_rows,
    spread_rows,
)
from tfembed.saved.written_file import written_file
from tfembed.tables import HashTable

__all__ = ["TableMonitor", "write_projector"]


class TableMonitor(keras.callbacks.Callback):
    """Follows the tables of a model: `tfembed.health` during training.

    At the end of each epoch the progress bar and `History` have "table_rows"
    and "table_bytes" of all tables together, and "table_hit_rate" of the
    epoch's lookups, if there were any. TensorBoard gets scalars and histograms
    by table, with the names of `Health.write_summaries`; its projector gets
    rows of each table with their keys. Between epochs, each finding of what
    looks wrong is printed once.

    Args:
      log_dir: the run's folder for TensorBoard, as for
        keras.callbacks.TensorBoard; None: no files. The summaries go to its
        subfolder "tables".
      every: "epoch", or the number of batches between two looks. With
        `steps_per_execution` batches in a call, a look comes after the call in
        which it is due, and has the number of batches up to there.
      projector_rows: the number of rows of each table to write when training
        ends; 0: none.
      source: the object with the tables; None: the model.
      sample: as in `tfembed.health`.
      verbose: 0: prints nothing; 1: prints what looks wrong.

    Attributes:
      health: the result of the last look, with counts since the look before;
        None before the first look.

    Example:
      monitor = tfembed.keras.callbacks.TableMonitor("logs")
      model.fit(batches, callbacks=[monitor])
      print(monitor.health)
    """

    health: Health | None = None

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        *,
        every: str | int = "epoch",
        projector_rows: int = 0,
        source: Any = None,
        sample: int = 20_000,
        verbose: int = 1,
    ) -> None:
        super().__init__()
        if verbose not in (0, 1):
            raise errors.ArgumentError(
                "`verbose` must be 0, to print nothing, or 1, to print what "
                f"looks wrong; got {verbose!r}."
            )
        self.verbose = int(verbose)
        if every != "epoch":
            every = checks.integer(every, "every", least=1)
        self.every = every
        self.projector_rows = checks.integer(
            projector_rows, "projector_rows", least=0
        )
        if log_dir is None and self.projector_rows:
            raise errors.ArgumentError(
                f"projector_rows={self.projector_rows} needs a `log_dir` for its "
                "files."
            )
        self.sample = checks.integer(sample, "sample", least=1)
        self._source = source
        self._folder = log_dir and pathlib.Path(log_dir) / "tables"
        self._writer: Any = None
        self._before: Health | None = None
        self._epoch_begin: Health | None = None
        self._batches = 0
        # At the beginning of the epoch, or of the last call.
        self._batches_before = self._batches_begun = 0
        self._iterations: int | None = None
        self._said: set[str] = set()
        self._unsaid: list[str] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Looks at the tables, if the model has built some already."""
        del epoch, logs
        self._say()
        self._batches_before = self._batches
        if self._epoch_begin is None:
            self._epoch_begin = self._before = self._look()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes which batches the call begins with."""
        del logs
        self._batches_begun = self._batches_before + batch
        self._iterations = self._optimizer_steps()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Writes summaries for TensorBoard every `every` batches."""
        del logs
        before = self._batches
        self._batches = max(self._batches_before + batch, before) + 1
        if self._batches - self._batches_begun > 1:
            # The last call of an epoch may have fewer batches than Keras says.
            made = self._optimizer_steps()
            if self._iterations is not None and made is not None:
                made += self._batches_begun - self._iterations
                if before < made < self._batches:
                    self._batches = made
        if self.every != "epoch" and (
            before // int(self.every) < self._batches // int(self.every)
        ):
            self._tell(self._look())

    def _optimizer_steps(self) -> int | None:
        optimizer = getattr(self.model, "optimizer", None)
        steps = getattr(optimizer, "iterations", None)
        return None if steps is None else int(steps)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds totals to `logs`, and writes summaries where they are due."""
        del epoch
        now = self._look()
        if now is None:
            return
        if logs is not None:
            logs.update(_totals(now.since(self._epoch_begin or Health(()))))
        self._epoch_begin = now
        if self.every == "epoch":
            self._tell(now)

    def on_train_end(self, logs: Any = None) -> None:
        """Writes the projector's files."""
        del logs
        self._say()
        if self._writer is not None:
            self._writer.flush()
        if self.projector_rows and self._folder and self._look() is not None:
            write_projector(
                self._watched(), self._folder, rows=self.projector_rows
            )

    def _watched(self) -> Any:
        return self.model if self._source is None else self._source

    def _look(self) -> Health | None:
        """Measures the tables; None if the model has not built them yet."""
        if not find_tables(self._watched()):
            return None
        return health(self._watched(), sample=self.sample)

    def _tell(self, now: Health | None) -> None:
        if now is None:
            return
        self.health = now if self._before is None else now.since(self._before)
        self._before = now
        for finding in now.findings():
            # Its numbers change from look to look.
            kind = "".join(c for c in finding if not c.isdigit())
            if kind not in self._said:
                self._said.add(kind)
                self._unsaid.append(finding)
        if self._folder is not None:
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(str(self._folder))
            self.health.write_summaries(self._batches, writer=self._writer)

    def _say(self) -> None:
        """Prints the findings, while no progress bar is on the line.

        Keras ends an epoch's bar after all calls of `on_epoch_end`.
        """
        if self.verbose:
            for finding in self._unsaid:
                sys.stdout.write(f"TableMonitor: {finding}\n")
        self._unsaid = []


def _totals(found: Health) -> dict[str, float]:
    """Sums the numbers of all tables, for the progress bar."""
    totals = {
        "table_rows": float(sum(table.rows for table in found)),
        "table_bytes": float(sum(table.total_bytes for table in found)),
    }
    hits = sum(table.counts.get("hits", 0) for table in found)
    asked = hits + sum(table.counts.get("misses", 0) for table in found)
    if asked:
        totals["table_hit_rate"] = hits / asked
    return totals


def write_projector(
    source: Any, folder: str | os.PathLike[str], *, rows: int = 1000
) -> list[str]:
    """Writes some rows of each table, with their keys as labels.

    TensorBoard shows them under "Projector" if the folder is one of its runs.
    The rows are the hottest where the eviction policy counts touches, else a
    pseudo-random choice; a fixed vocabulary gives evenly spread rows.

    Args:
      source: an object with tables, as for `tfembed.health`.
      folder: a run's folder; it is made if missing.
      rows: the number of rows of each table.

    Returns:
      The stem of each table's files; tables without numbers are left out.
    """
    path = pathlib.Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    written: list[str] = []
    entries: list[str] = []
    for found in require_tables(source):
        keys, values = _rows_of(found, rows)
        if values is None or values.size == 0:
            continue
        stem = _stem(found.name, written)
        with written_file(path / f"{stem}.tsv") as file:
            np.savetxt(file, values, "%.7g", "\t")
        labels = "".join(f"{_label(key)}\n" for key in keys)
        with written_file(path / f"{stem}_keys.tsv") as file:
            file.write_text(labels, "utf-8", "backslashreplace")
        entries.append(
            f'embeddings {{\n  tensor_name: "{stem}"\n'
            f"  tensor_shape: {values.shape[0]}\n"
            f"  tensor_shape: {values.shape[1]}\n"
            f'  tensor_path: "{stem}.tsv"\n'
            f'  metadata_path: "{stem}_keys.tsv"\n}}\n'
        )
        written.append(stem)
    with written_file(path / "projector_config.pbtxt") as file:
        file.write_text("".join(entries), encoding="utf-8")
    return written


def _rows_of(found: FoundTable, rows: int) -> tuple[list[Any], Any]:
    table = found.rows
    if isinstance(table, HashTable):
        if table.dim == 0:
            return [], None
        keys = hottest_rows(table, rows)
        values = table.lookup(keys)[0]
        names = [as_key(key) for key in keys.numpy()]
        return names, tf.cast(values, tf.float32).numpy()
    if hasattr(table, "handles"):  # A table of strings.
        return [], None
    chosen = spread_rows(int(table.shape[0]), rows)
    return chosen.tolist(), gather_rows(table, chosen)


def _stem(name: str, taken: list[str]) -> str:
    """Returns a name for files and tensor that no other table has."""
    stem = chosen = re.sub(r"[^\w.-]", "_", name)
    while chosen in taken:
        chosen = f"{stem}_{taken.index(chosen) + 2}"
    return chosen


def _label(key: Any) -> str:
    """Returns a key on one line; "(empty)" for a blank key.

    The projector drops blank lines.
    """
    text = re.sub(r"[\t\r\n\v\f\x1c-\x1e\x85\u2028\u2029]", " ", str(key))
    return text if text.strip() else "(empty)"
