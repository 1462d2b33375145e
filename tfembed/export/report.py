"""The report of an export: its tables, and the functions left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tfembed import units

__all__ = ["Report", "TableReport"]


@dataclasses.dataclass(frozen=True)
class TableReport:
    """A table of an export.

    Attributes:
      name: the table's name.
      num_rows: the number of rows.
      key_dtype: "int64", "int32" or "string".
      row_bytes: the bytes of a row.
      num_bytes: the bytes of the sealed table.
    """

    name: str
    num_rows: int
    key_dtype: str
    row_bytes: int
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class Report:
    """Describes what `to_stock` wrote; `print` it.

    Attributes:
      source, target: the folders.
      source_bytes, target_bytes: the bytes of their files.
      tables: the tables.
      left_out: the functions without a form in TensorFlow's ops, by their
        paths, each with the reason.
    """

    source: str
    target: str
    source_bytes: int
    target_bytes: int
    tables: tuple[TableReport, ...]
    left_out: Mapping[str, str]

    def __str__(self) -> str:
        rows = sum(table.num_rows for table in self.tables)
        lines = [
            f"{self.target}: {units.counted(len(self.tables), 'table')}, "
            f"{rows:,} rows, {units.as_bytes(self.target_bytes)} ({self.source}: "
            f"{units.as_bytes(self.source_bytes)}). Runs on TensorFlow without "
            "tfembed."
        ]
        cells = [("table", "rows", "keys", "a row")]
        cells += [
            (t.name, f"{t.num_rows:,}", t.key_dtype, f"{t.row_bytes} B")
            for t in self.tables
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += [
            "  ".join(
                cell.ljust(width)
                for cell, width in zip(row, widths, strict=True)
            ).rstrip()
            for row in cells
        ]
        lines += [f"left out: {p}: {why}." for p, why in self.left_out.items()]
        return "\n".join(lines)
