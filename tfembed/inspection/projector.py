"""Files by which TensorBoard's projector shows rows of tables."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed.inspection.found_tables import FoundTable, require_tables
from tfembed.inspection.table_health import (
    as_key,
    gather_rows,
    hottest_rows,
    spread_rows,
)
from tfembed.tables import HashTable

__all__ = ["write_projector"]


def write_projector(
    source: Any, folder: str | os.PathLike[str], *, rows: int = 1000
) -> list[str]:
    """Writes some rows of each table, with their keys as labels.

    TensorBoard shows them under "Projector" where the folder is one of its runs.
    The rows are the hottest where the eviction policy notes that, else some that
    are picked as if by chance; of a fixed vocabulary one from each stretch.

    Args:
      source: what has tables, as for `tfembed.health`.
      folder: a run's folder, which is made where it is not there.
      rows: of each table.

    Returns:
      The names of the tables that have rows of numbers, which were written.
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
        np.savetxt(path / f"{stem}.tsv", values, "%.7g", "\t")
        labels = "".join(f"{_label(key)}\n" for key in keys)
        (path / f"{stem}_keys.tsv").write_text(labels)
        entries.append(
            f'embeddings {{\n  tensor_name: "{stem}"\n'
            f"  tensor_shape: {values.shape[0]}\n"
            f"  tensor_shape: {values.shape[1]}\n"
            f'  tensor_path: "{stem}.tsv"\n'
            f'  metadata_path: "{stem}_keys.tsv"\n}}\n'
        )
        written.append(stem)
    (path / "projector_config.pbtxt").write_text("".join(entries))
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
    if hasattr(table, "handles"):  # Of strings.
        return [], None
    chosen = spread_rows(int(table.shape[0]), rows)
    return chosen.tolist(), gather_rows(table, chosen)


def _stem(name: str, taken: list[str]) -> str:
    """A file's name, and the tensor's, that no other table has."""
    stem = chosen = re.sub(r"[^\w.-]", "_", name)
    while chosen in taken:
        chosen = f"{stem}_{taken.index(chosen) + 2}"
    return chosen


def _label(key: Any) -> str:
    """A key on one line, never an empty one, which the projector drops."""
    text = re.sub(r"[\t\r\n\v\f\x1c-\x1e\x85\u2028\u2029]", " ", str(key))
    return text if text.strip() else "(empty)"
