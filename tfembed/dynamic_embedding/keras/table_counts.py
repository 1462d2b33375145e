"""Tables in `model.summary()`, which asks layers for a count of parameters."""

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
      text: the form of summaries.
    """

    text = ""

    def __format__(self, spec: str) -> str:
        # Only Keras' summary asks for this form.
        return self.text if spec == "," else super().__format__(spec)


def no_rows(dim: int) -> TableCount:
    """The numbers of a table that nobody has looked up yet, of width `dim`."""
    counted = TableCount(0)
    counted.text = f"0 x {dim} ({_bytes(0)})"
    return counted


def table_count(tables: Iterable[tuple[str, Any]]) -> TableCount:
    """The numbers that tables hold in their rows, slots left out.

    Args:
      tables: names, and tf.Variables or tables that grow.
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
    """Rows, width, bytes of a number."""
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
