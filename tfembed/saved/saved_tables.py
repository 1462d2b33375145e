"""The tables of a checkpoint, a SavedModel, raw files or a Keras file.

All these files have one interface. It imports no TensorFlow, and never holds a
table in memory:

    for table in open_saved("run/ckpt-3").values():
        for chunk in table.chunks():
            chunk.keys, chunk.rows, chunk.slots, chunk.counters
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import pathlib
import re
import stat
from collections.abc import Iterator, Mapping

from tfembed import errors
from tfembed.saved import state_file
from tfembed.saved.column import Column
from tfembed.saved.file_bytes import FileBytes
from tfembed.saved.formats import checkpoint_tables, keras_file, row_pairs
from tfembed.saved.formats.bundle import Bundle
from tfembed.saved.formats.checkpoint_tables import SavedVariable
from tfembed.saved.formats.row_pairs import RowDtypes
from tfembed.saved.saved_table import (
    Chunk,
    FoundRow,
    SavedTable,
    table_name,
)

__all__ = [
    "Chunk",
    "FoundRow",
    "RowDtypes",
    "SavedTable",
    "SavedTables",
    "SavedVariable",
    "checkpoints_of",
    "open_saved",
]

# Variables that count steps: those of a Saver, a program, a Keras optimizer.
_STEPS = (
    "global_step",
    "step/.ATTRIBUTES/VARIABLE_VALUE",
    "optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE",
    "optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE",
)

_KERAS_ENDS = (".keras", ".weights.h5")
_PREFIX_ENDS = re.compile(r"\.index$|\.data-\d{5,}-of-\d{5,}$|\.meta$")


class SavedTables(Mapping[str, SavedTable]):
    """The tables of one file, or of the files of one save, by name.

    The name is the one that the program gave, or the table's path in the file
    where it gave none or several tables share it. Iterating yields names, as
    for any mapping; `values()` gives the tables.

    Args:
      path: the path of the file; for a checkpoint without ".index".
      kind: "checkpoint", "SavedModel", "row files", "Keras model" or
        "Keras weights".
      tables: all tables of the file.
      bundles: the checkpoints of the file, by the prefix of their tables'
        names.
      arrays: the variables beside these, by their paths.

    Attributes:
      path, kind: the arguments.
      shared_names: the names that several tables have.
    """

    def __init__(
        self,
        path: str,
        kind: str,
        tables: list[SavedTable],
        bundles: Mapping[str, Bundle],
        arrays: Mapping[str, Column] | None = None,
    ) -> None:
        self.path = path
        self.kind = kind
        self._bundles = bundles
        self._arrays = arrays or {}
        self._by_path: dict[str, SavedTable] = {}
        for table in tables:
            path, n = table.path, 1
            while path in self._by_path:  # Names of tensors may share a path.
                n += 1
                path = f"{table.path} ({n})"
            self._by_path[path] = dataclasses.replace(table, path=path)
        names = {p: table_name(one.name) for p, one in self._by_path.items()}
        # A name that equals the path did not come from the program.
        self._names = {path: n for path, n in names.items() if n != path}
        count = collections.Counter(self._names.values())
        self.shared_names = sorted(n for n in count if count[n] > 1)
        self._tables: dict[str, SavedTable] = {}
        for path, table in self._by_path.items():
            name = self._names.get(path, path)
            if count[name] > 1 or (name != path and name in self._by_path):
                name = path
            self._tables[name] = dataclasses.replace(table, name=name)
        self._by_path = {one.path: one for one in self._tables.values()}

    def __getitem__(self, name: str) -> SavedTable:
        """Returns the table of this name or path, or the only one that ends so.

        A variable of rank 2 counts as a table where its path is given in full.

        Raises:
          tfembed.errors.MissingTableError: no table fits, or several do.
        """
        for known_tables in (self._tables, self._by_path):
            if name in known_tables:
                return known_tables[name]
        alike = [path for path, own in self._names.items() if own == name]
        alike = alike or [p for p in self._by_path if p.endswith(f"/{name}")]
        if len(alike) == 1:
            return self._by_path[alike[0]]
        for begin, bundle in self._bundles.items():
            if not alike and name.startswith(begin):
                inner = name.removeprefix(begin)
                table = checkpoint_tables.variable_as_table(bundle, inner)
                if table is not None:
                    return dataclasses.replace(table, name=name, path=name)
        column = self._arrays.get(name)
        if not alike and column is not None and len(column.shape) == 2:
            return checkpoint_tables.column_as_table(name, column)
        known = ", ".join(f"'{own}'" for own in alike or self._tables)
        if alike:
            raise errors.MissingTableError(
                f"'{self.path}' has several tables '{name}': {known}. Give the "
                "whole path."
            )
        raise errors.MissingTableError(
            f"'{self.path}' has no table '{name}'; its tables are "
            f"{known or 'none at all'}."
        )

    def __contains__(self, name: object) -> bool:
        return name in self._tables or name in self._by_path

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def variables(self) -> list[SavedVariable]:
        """The tensors of the file that belong to no table.

        Raises:
          tfembed.errors.CheckpointError: an entry of the index is damaged.
        """
        tables = list(self._tables.values())
        of_bundles = [
            dataclasses.replace(variable, name=f"{begin}{variable.name}")
            for begin, bundle in self._bundles.items()
            for variable in checkpoint_tables.variables(bundle, tables)
        ]
        return of_bundles + [
            SavedVariable(name, column.dtype, column.shape, column.size)
            for name, column in self._arrays.items()
        ]

    @property
    def modified(self) -> float:
        """When the files were last written, in seconds since 1970."""
        files = [bundle.index for bundle in self._bundles.values()]
        files += [
            part.file
            for table in self._tables.values()
            for column in table.columns.values()
            for part in column.parts
        ]
        if not files:
            return pathlib.Path(self.path).stat().st_mtime
        return max(file.modified for file in files)

    @property
    def step(self) -> int | None:
        """The training step, where a variable of the file counts steps."""
        for bundle in self._bundles.values():
            for name in _STEPS:
                step = bundle.scalar(name)
                if isinstance(step, int):
                    return step
        return None

    @property
    def number(self) -> int | None:
        """The number of the save at the end of a checkpoint's name."""
        match = re.search(r"-(\d+)$", self.path)
        return int(match[1]) if match else None

    def check(self) -> None:
        """Compares all bytes of all tensors with their checksums.

        Raises:
          tfembed.errors.CheckpointError: some bytes do not match; the text
            names the file and the tensor.
        """
        for bundle in self._bundles.values():
            for column in bundle.stored_parts():
                column.check()
        if self.kind == "Keras model":
            keras_file.check_archive(pathlib.Path(self.path))
        elif not self._bundles:
            for table in self._tables.values():
                table.check()
        for column in self._arrays.values():
            column.check()

    @property
    def has_checksums(self) -> bool:
        """Whether all bytes have a checksum; TFRA's and HDF5 files have none."""
        if self.kind == "Keras model":  # The archive has them.
            return True
        columns = [
            column
            for table in self._tables.values()
            for column in table.columns.values()
        ]
        return all(
            part.crc is not None
            for column in (*columns, *self._arrays.values())
            for part in column.parts
        )


def open_saved(
    path: str | os.PathLike[str], *, dtypes: RowDtypes | None = None
) -> SavedTables:
    """Opens a file or folder with tables. Rows are read on demand.

    Args:
      path: a checkpoint's prefix, or one of its files; a folder of
        checkpoints, which stands for the latest; the folder of a SavedModel; a
        `.keras` or `.weights.h5` file, or a folder with one such file, as
        Keras' `BackupAndRestore` writes it; a pair of raw files, by either name
        or by their common prefix; or a folder of pairs.
      dtypes: the dtypes of raw files without a manifest; None: int64 and
        float32.

    Raises:
      tfembed.errors.CheckpointError: the file is missing, damaged or of
        another kind.
      tfembed.errors.UnsupportedError: h5py, for `.weights.h5`, is missing.
    """
    text = os.fspath(path)
    if "://" in text:
        raise errors.CheckpointError(
            f"'{text}' is a remote path. Copy the files to this machine first."
        )
    try:
        return _open(pathlib.Path(text), dtypes or RowDtypes())
    except OSError as error:
        raise errors.CheckpointError(
            f"'{text}' cannot be read: {error.strerror or error}."
        ) from error


def checkpoints_of(folder: str | os.PathLike[str]) -> list[str]:
    """Returns the prefixes of all checkpoints in a folder, the oldest first."""
    found = []
    for path in pathlib.Path(folder).glob("*.index"):
        with contextlib.suppress(OSError):  # A link that ends nowhere.
            prefix = str(path.with_suffix(""))
            found.append((path.stat().st_mtime, _number(path.stem), prefix))
    return [prefix for *_, prefix in sorted(found)]


def _open(path: pathlib.Path, dtypes: RowDtypes) -> SavedTables:
    if path.is_dir():
        return _open_folder(path, dtypes)
    name = path.name
    if (stem := row_pairs.stem_of(name)) is not None and path.exists():
        return _pairs(path.parent, [stem], dtypes, str(path.with_name(stem)))
    prefix = path.with_name(_PREFIX_ENDS.sub("", name))
    if prefix.with_name(f"{prefix.name}.index").exists():
        return _checkpoint(prefix, "checkpoint")
    if path.with_name(f"{name}-keys").exists():
        return _pairs(path.parent, [name], dtypes, str(path))
    if not path.exists():
        raise errors.CheckpointError(
            f"There is no file or checkpoint '{path}'."
        )
    if not stat.S_ISREG(path.stat().st_mode):
        raise errors.CheckpointError(f"'{path}' is not a file.")
    with path.open("rb") as file:
        magic = file.read(8)
    if magic.startswith(b"PK\x03\x04"):
        return _keras(path, keras_file.in_archive(path), "Keras model")
    if magic == b"\x89HDF\r\n\x1a\n":
        return _keras(path, keras_file.in_hdf5(path), "Keras weights")
    raise errors.CheckpointError(
        f"'{path}' is not a checkpoint, SavedModel, pair of row files, "
        "'.keras' or '.weights.h5' file."
    )


def _open_folder(folder: pathlib.Path, dtypes: RowDtypes) -> SavedTables:
    if any((folder / f"saved_model.{end}").exists() for end in ("pb", "pbtxt")):
        variables = folder / "variables" / "variables"
        if not variables.with_suffix(".index").exists():
            raise errors.CheckpointError(
                f"SavedModel '{folder}' has no variables: '{variables}.index' is "
                "missing."
            )
        return _checkpoint(variables, "SavedModel", str(folder))
    latest = _latest(folder)
    if latest is not None:
        return _checkpoint(latest, "checkpoint")
    if found := row_pairs.stems(folder):
        return _pairs(folder, found, dtypes, str(folder))
    of_keras = sorted(
        path.name for end in _KERAS_ENDS for path in folder.glob(f"*{end}")
    )
    if len(of_keras) == 1:
        return _open(folder / of_keras[0], dtypes)
    raise errors.CheckpointError(
        f"Folder '{folder}' has no checkpoint, SavedModel or row files."
        + (f" Name one of Keras' files in it: {of_keras}." if of_keras else "")
    )


def _latest(folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the checkpoint that the folder's state file names.

    Without that file it is the newest checkpoint; without one it is None.

    Raises:
      tfembed.errors.CheckpointError: the file names none of the checkpoints.
    """
    state = folder / state_file.NAME
    found = checkpoints_of(folder)
    if not state.is_file():
        return pathlib.Path(found[-1]) if found else None
    with state.open("rb") as file:
        name = state_file.latest_of(file.read(state_file.MOST_BYTES))
    fault = "is damaged, or cut short"
    if name is not None:
        prefix = folder / name
        if prefix.with_name(f"{prefix.name}.index").exists():
            return prefix
        fault = f"names '{prefix}', which is not there"
    if found:
        raise errors.CheckpointError(
            f"'{state}', the file that names the latest checkpoint, {fault}. "
            f"Name one of those in the folder: {found[-10:]}."
        )
    return None


def _number(name: str) -> int:
    match = re.search(r"(\d+)$", name)
    return int(match[1]) if match else 0


def _checkpoint(
    prefix: pathlib.Path, kind: str, path: str | None = None
) -> SavedTables:
    def data(number: int, num_files: int) -> FileBytes:
        name = f"{prefix.name}.data-{number:05d}-of-{num_files:05d}"
        return FileBytes(prefix.with_name(name))

    bundle = Bundle(FileBytes(prefix.with_name(f"{prefix.name}.index")), data)
    return SavedTables(
        path or str(prefix),
        kind,
        checkpoint_tables.tables(bundle),
        {"": bundle},
    )


def _keras(
    path: pathlib.Path, layers: list[keras_file.LayerBundle], kind: str
) -> SavedTables:
    tables = []
    bundles = {}
    for layer in layers:
        bundles[f"{layer.layer}/"] = layer.bundle
        for table in checkpoint_tables.tables(layer.bundle):
            # A layer saves its tables below an object of this name.
            inner = table.path.removeprefix("params/")
            own = inner.rpartition("/")[2]
            said = layer.policies.get(own, layer.policies.get("", {}))
            place = (
                layer.layer if inner == "table" else f"{layer.layer}/{inner}"
            )
            tables.append(
                dataclasses.replace(
                    table,
                    name=place if table.name == table.path else table.name,
                    path=place,
                    policies={**table.policies, **said},
                )
            )
    return SavedTables(
        str(path), kind, tables, bundles, keras_file.arrays(path)
    )


def _pairs(
    folder: pathlib.Path, stems: list[str], dtypes: RowDtypes, path: str
) -> SavedTables:
    tables = row_pairs.tables(folder, stems, dtypes)
    return SavedTables(path, "row files", tables, {})
