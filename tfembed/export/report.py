"""The report of an export: its tables, and the functions left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from tfembed import units
from tfembed.export.check import OutputReport
from tfembed.export.oldest_tensorflow import OLDEST

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
      trained_row_bytes: the bytes of a row in the source.
      largest_error: the largest difference of a number from the source's.
      root_mean_square_error: that of all numbers.
    """

    name: str
    num_rows: int
    key_dtype: str
    row_bytes: int
    num_bytes: int
    trained_row_bytes: int
    largest_error: float = 0.0
    root_mean_square_error: float = 0.0

    @property
    def row_text(self) -> str:
        """The bytes of a row in words."""
        if self.row_bytes == self.trained_row_bytes:
            return f"{self.row_bytes} B"
        return f"{self.trained_row_bytes} -> {self.row_bytes} B"


@dataclasses.dataclass(frozen=True)
class Report:
    """Describes what `to_stock` wrote; `print` it.

    Attributes:
      source, target: the folders.
      source_bytes, target_bytes: the bytes of their files.
      tables: the tables.
      left_out: the functions without a form in TensorFlow's ops, by their
        paths, each with the reason.
      outputs: the outputs that `check` compared.
      updated_by: the inputs of `tfembed_update`, of a live model.
    """

    source: str
    target: str
    source_bytes: int
    target_bytes: int
    tables: tuple[TableReport, ...]
    left_out: Mapping[str, str]
    outputs: tuple[OutputReport, ...] = ()
    updated_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = sum(table.num_rows for table in self.tables)
        lines = [
            f"{self.target}: {units.counted(len(self.tables), 'table')}, "
            f"{rows:,} rows, {units.as_bytes(self.target_bytes)} ({self.source}: "
            f"{units.as_bytes(self.source_bytes)}). Runs on TensorFlow "
            f"{OLDEST} and later, without tfembed."
        ]
        cells: list[tuple[str, ...]] = [
            ("table", "rows", "keys", "a row", "largest error", "rms")
        ]
        cells += [
            (
                t.name,
                f"{t.num_rows:,}",
                t.key_dtype,
                t.row_text,
                f"{t.largest_error:.3g}",
                f"{t.root_mean_square_error:.3g}",
            )
            for t in self.tables
        ]
        if not any(t.largest_error for t in self.tables):
            cells = [row[:4] for row in cells]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += [
            "  ".join(
                cell.ljust(width)
                for cell, width in zip(row, widths, strict=True)
            ).rstrip()
            for row in cells
        ]
        if self.updated_by:
            lines.append(
                f"live: tfembed_update takes {', '.join(self.updated_by)}."
            )
        lines += list(self._checks())
        lines += [f"left out: {p}: {why}." for p, why in self.left_out.items()]
        return "\n".join(lines)

    def _checks(self) -> Iterator[str]:
        """Yields a line for each signature that was compared."""
        for name in dict.fromkeys(one.signature for one in self.outputs):
            mine = [one for one in self.outputs if one.signature == name]
            apart = [one for one in mine if one.difference]
            if not apart:
                count = units.counted(len(mine), "output")
                yield f"check: {count} of '{name}' equal bit for bit."
            for one in apart:
                yield (
                    f"check: '{one.output}' of '{name}' differs by "
                    f"{one.difference:.3g} at most, in numbers up to "
                    f"{one.largest:.3g}."
                )
