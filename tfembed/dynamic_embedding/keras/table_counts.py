"""Parameter counts of tables for `model.summary()`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["TableCount", "no_rows", "table_count"]

_MOST_LINES = 8
_UNITS = ("B", "KB", "MB", "GB", "TB")


class TableCount(int):
    """A number of parameters that a summary shows as rows, width and bytes.

    Attributes:
      text: the text in summaries.
    """

    text = ""

    def __format__(self, spec: str) -> str:
        # Only Keras' summary formats with this specification.
        return self.text if spec == "," else super().__format__(spec)


def no_rows(dim: int) -> TableCount:
    """Returns the count of a table of width `dim` before its first lookup."""
    counted = TableCount(0)
    counted.text = f"0 x {dim} ({_bytes(0)})"
    return counted


def table_count(tables: Iterable[tuple[str, Any]]) -> TableCount:
    """Counts the numbers in the rows of tables, without slots.

    Args:
      tables: pairs of a name and a tf.Variable or hash table.
    """
    found = [(name, *_size(table)) for name, table in tables]
    count = sum(rows * dim for _, rows, dim, _ in found)
    lines = [
        (f"{name}: " if len(found) > 1 else "")
        + f"{rows:,} x {dim} ({_bytes(rows * dim * width)})"
        for name, rows, dim, width in found
    ]
    if len(found) > _MOST_LINES:
        rows = sum(rows for _, rows, _, _ in found)
        total = sum(rows * dim * width for _, rows, dim, width in found)
        lines = [f"{len(found)} tables: {rows:,} rows ({_bytes(total)})"]
    counted = TableCount(count)
    counted.text = "\n".join(lines)
    return counted


def _size(table: Any) -> tuple[int, int, int]:
    """Returns the number of rows, the width, and the bytes of a number."""
    if isinstance(table, tf.Variable):
        rows, dim = table.shape
        return int(rows), int(dim), table.dtype.size
    return int(np.asarray(table.size())), table.dim, table.value_dtype.size


def _bytes(count: int) -> str:
    size = float(count)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
