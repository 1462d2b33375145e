"""Writes a saved table as a file of another format, in chunks of rows."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import json
import os
import pathlib
import shutil
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tfembed import errors
from tfembed.optional_packages import optional
from tfembed.saved.saved_table import Array, Chunk, SavedTable
from tfembed.saved.written_file import written_file

__all__ = ["KINDS", "export"]

# TensorBoard's projector shows about ten thousand points.
_PROJECTOR_ROWS = 10_000

# The longest text in a `.npz`, which pads all texts to the longest one.
_MOST_KEY_BYTES = 1024


def export(
    table: SavedTable, path: str | os.PathLike[str], *, limit: int | None = None
) -> int:
    """Writes a table; the file is either complete or absent.

    Args:
      table: the table whose keys, rows, slots and counters are written.
      path: its end gives the format: `.npz` (arrays "keys", "rows",
        "slots/<name>", "counters"), `.parquet` (columns of these names; needs
        pyarrow), `.csv` (a column for each number), or a folder, by a "/" at
        the end, for TensorBoard's projector: `tensors.tsv`, `metadata.tsv`
        with the keys, and `projector_config.pbtxt`.
      limit: the maximum number of rows, the first ones of the file; None: all
        rows, or 10,000 for a projector.

    Returns:
      The number of rows written.

    Raises:
      tfembed.errors.ArgumentError: the path has another end, or exists
        already.
      tfembed.errors.UnsupportedError: pyarrow is not installed, or the format
        cannot hold the table, as a CSV file holds no text that is not UTF-8.
      tfembed.errors.CheckpointError: the table's file is damaged.
    """
    text = os.fspath(path)
    target = pathlib.Path(text)
    end = "/" if text.endswith("/") else target.suffix
    if end not in KINDS:
        raise errors.ArgumentError(
            f"A table is written to a path that ends in {', '.join(KINDS)}; got "
            f"'{text}'."
        )
    if end == "/" and limit is None:
        limit = _PROJECTOR_ROWS
    limit = table.num_rows if limit is None else min(limit, table.num_rows)
    with written_file(target, replaces=False) as written:
        KINDS[end](table, written, limit)
    return limit


def _chunks(table: SavedTable, limit: int) -> Iterator[Chunk]:
    """Yields the first rows of a table, but reads all, for their checksums."""
    left = limit
    for chunk in table.chunks():
        n = min(left, len(chunk))
        left -= n
        if n == len(chunk):
            yield chunk
        elif n:
            yield Chunk(
                chunk.keys[:n],
                chunk.rows[:n],
                {name: slot[:n] for name, slot in chunk.slots.items()},
                None if chunk.counters is None else chunk.counters[:n],
            )


def _columns(chunk: Chunk) -> dict[str, Array]:
    columns = {"keys": chunk.keys, "rows": chunk.rows}
    columns |= {f"slots/{name}": slot for name, slot in chunk.slots.items()}
    if chunk.counters is not None:
        columns["counters"] = chunk.counters
    return columns


def _write_npz(table: SavedTable, path: pathlib.Path, limit: int) -> None:
    if table.dtype == "string":
        raise errors.UnsupportedError(
            "Rows of strings are not written to '.npz'; use '.parquet' or '.csv'."
        )
    key_dtype = np.dtype("<i8")
    if table.key_dtype == "string":
        key_dtype = _text_dtype(table, limit)
    shapes: dict[str, tuple[int, ...]] = {
        "keys": (limit,),
        "rows": (limit, table.width),
        **{
            f"slots/{name}": (limit, width)
            for name, width in table.slot_widths.items()
        },
    }
    if table.counters:
        shapes["counters"] = (limit,)
    # A ZIP archive takes one array after the other: write each to its own
    # file.
    files: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        for chunk in _chunks(table, limit):
            for name, array in _columns(chunk).items():
                if name == "keys":
                    array = array.astype(key_dtype)
                if name not in files:
                    part = path.with_name(f"{len(files)}.npy")
                    files[name] = stack.enter_context(part.open("wb+"))
                    _write_head(files[name], array.dtype, shapes[name])
                files[name].write(np.ascontiguousarray(array).data)
        for name in shapes.keys() - files.keys():  # Columns without rows.
            dtype = key_dtype if name == "keys" else np.dtype("<f4")
            part = path.with_name(f"{len(files)}.npy")
            files[name] = stack.enter_context(part.open("wb+"))
            _write_head(files[name], dtype, shapes[name])
        with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
            for name in shapes:
                files[name].seek(0)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as into:
                    shutil.copyfileobj(files[name], into, 1 << 20)


def _write_head(file: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    npy: Any = np.lib.format  # NumPy's module has no types.
    head = {
        "descr": npy.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    npy.write_array_header_2_0(file, head)


def _text_dtype(table: SavedTable, limit: int) -> Any:
    """Returns a bytes dtype that all keys fit into."""
    longest, ends_in_zero = 1, False
    left = limit
    for chunk in table.chunks(rows=False, slots=False, counters=False):
        for key in chunk.keys[:left]:
            longest = max(longest, len(key))
            ends_in_zero = ends_in_zero or key.endswith(b"\0")
        left = max(0, left - len(chunk))
    if longest > _MOST_KEY_BYTES or ends_in_zero:
        raise errors.UnsupportedError(
            f"Keys of table '{table.name}' have up to {longest} bytes"
            f"{' and some end in a zero byte' if ends_in_zero else ''}, which "
            "arrays of NumPy do not hold; use '.parquet' or '.csv'."
        )
    return np.dtype(f"S{longest}")


def _write_parquet(table: SavedTable, path: pathlib.Path, limit: int) -> None:
    arrow = optional("pyarrow", "A '.parquet' file")
    parquet = importlib.import_module("pyarrow.parquet")

    def column(array: Array) -> Any:
        if array.ndim == 1:
            kind = arrow.binary() if array.dtype == object else None
            return arrow.array(array, kind)
        flat = array.reshape(-1)
        kind = arrow.binary() if flat.dtype == object else None
        return arrow.FixedSizeListArray.from_arrays(
            arrow.array(flat, kind), array.shape[1]
        )

    writer = None
    with contextlib.ExitStack() as stack:
        empty = _empty(table)
        for chunk in (empty, *()) if not limit else _chunks(table, limit):
            batch = arrow.table(
                {
                    name: column(a)
                    for name, a in _columns(chunk).items()
                    if a.shape[1:] != (0,)
                }
            )
            if writer is None:
                writer = stack.enter_context(
                    parquet.ParquetWriter(path, batch.schema)
                )
            writer.write_table(batch)


def _empty(table: SavedTable) -> Chunk:
    is_text = table.key_dtype == "string"
    return Chunk(
        np.zeros(0, object if is_text else np.int64),
        np.zeros((0, table.width), np.float32),
        {
            name: np.zeros((0, width), np.float32)
            for name, width in table.slot_widths.items()
        },
        np.zeros(0, np.int64) if table.counters else None,
    )


def _write_csv(table: SavedTable, path: pathlib.Path, limit: int) -> None:
    head = ["key", *(f"row_{i}" for i in range(table.width))]
    for name, width in table.slot_widths.items():
        head += [f"{name}_{i}" for i in range(width)]
    head += ["counter"] if table.counters else []
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        for chunk in _chunks(table, limit):
            writer.writerows(_lines(chunk))


def _lines(chunk: Chunk) -> Iterator[list[Any]]:
    columns = [
        chunk.rows,
        *chunk.slots.values(),
        *([] if chunk.counters is None else [chunk.counters[:, None]]),
    ]
    for i, key in enumerate(chunk.keys.tolist()):
        line = [_text(key)]
        for column in columns:
            line += [_text(value) for value in column[i]]
        yield line


def _text(value: Any) -> str:
    """Formats a number so that it reads back exactly; bytes as text."""
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise errors.UnsupportedError(
            f"{value!r} is not UTF-8, which a '.csv' file cannot hold; use "
            "'.parquet' or '.npz'."
        ) from None


def _label(key: Any) -> str:
    r"""Returns a key on one line: `\xff` for a byte, `\\xff` for that text."""
    if isinstance(key, bytes):
        key = key.decode("utf-8", "surrogateescape")
    text = json.dumps(str(key), ensure_ascii=False)[1:-1]
    return "".join(
        f"\\x{ord(c) - 0xDC00:02x}" if "\udc80" <= c <= "\udcff" else c
        for c in text
    )


def _write_projector(table: SavedTable, path: pathlib.Path, limit: int) -> None:
    if table.dtype == "string" or not table.width:
        raise errors.UnsupportedError(
            f"Table '{table.name}' has no numbers to show in a projector."
        )
    path.mkdir()
    with (
        (path / "tensors.tsv").open("w", encoding="utf-8") as tensors,
        (path / "metadata.tsv").open("w", encoding="utf-8") as labels,
    ):
        # The projector wants a header only for two or more columns.
        if table.counters:
            labels.write(f"key\t{table.counters}\n")
        for chunk in _chunks(table, limit):
            text = io.StringIO()
            np.savetxt(text, chunk.rows, "%.9g", "\t")
            tensors.write(text.getvalue())
            for i, key in enumerate(chunk.keys.tolist()):
                label = _label(key)
                if chunk.counters is not None:
                    label += f"\t{chunk.counters[i]}"
                labels.write(f"{label or ' '}\n")
    name = json.dumps(table.name)
    (path / "projector_config.pbtxt").write_text(
        f"embeddings {{\n  tensor_name: {name}\n"
        '  tensor_path: "tensors.tsv"\n  metadata_path: "metadata.tsv"\n}\n',
        encoding="utf-8",
    )


# The writer of each format, by the end of the path.
KINDS: dict[str, Callable[[SavedTable, pathlib.Path, int], None]] = {
    ".npz": _write_npz,
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    "/": _write_projector,
}
