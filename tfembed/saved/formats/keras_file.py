"""The tables in Keras' files: checkpoints within a `.keras` or HDF5 file.

A `.keras` file is a ZIP archive with a folder of assets for each layer; a
`.weights.h5` file has the same bytes in arrays of some megabytes. Both store
the bytes uncompressed, so that a table is read in place without unpacking.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import lzma
import pathlib
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

from tfembed import errors
from tfembed.optional_packages import optional
from tfembed.saved.column import Column, Encoding, Part
from tfembed.saved.file_bytes import FileBytes
from tfembed.saved.formats.bundle import DTYPES, Bundle

__all__ = ["LayerBundle", "arrays", "check_archive", "in_archive", "in_hdf5"]

_ROWS = "rows"
_MOST_CONFIG_BYTES = 64 << 20
_WEIGHTS = "model.weights.h5"
_TABLE_FILE = re.compile(r"(.*)/(rows\.[^/|]+)\|(\d+)", re.DOTALL)

# The bytes of a number, by the name of its dtype.
_SIZES = {name: size for name, size in DTYPES.values() if size}

# The errors that reading a damaged archive raises, RuntimeError for one that is
# encrypted.
_DAMAGES = (
    OSError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
)


@dataclasses.dataclass(frozen=True)
class LayerBundle:
    """The checkpoint of a layer's tables.

    Attributes:
      layer: the layer's path in the file.
      bundle: the checkpoint.
      policies: by table name ("" for a layer's only table), the policies of
        the model's config by kind: "admission", "eviction" and "expiry".
    """

    layer: str
    bundle: Bundle
    policies: dict[str, dict[str, str]]


def in_archive(path: pathlib.Path) -> list[LayerBundle]:
    """Returns the layers with tables in a `.keras` file.

    Raises:
      tfembed.errors.CheckpointError: the file is damaged, or compressed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {one.filename: one for one in archive.infolist()}
            config = _config(archive, members)
    except _DAMAGES as error:
        raise _damaged(path, error) from None
    found = []
    for name in sorted(members):
        folder, _, file = name.rpartition("/")
        if file != f"{_ROWS}.index":
            continue
        files = {
            one.rpartition("/")[2]: _member(path, members[one])
            for one in members
            if one.rpartition("/")[0] == folder
        }
        layer = folder.removeprefix("assets/")
        found.append(_layer(path, layer, files, config))
    return found


def check_archive(path: pathlib.Path) -> None:
    """Compares all members of a `.keras` file with the archive's checksums.

    Raises:
      tfembed.errors.CheckpointError: some members are damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except _DAMAGES as error:
        raise _damaged(path, error) from None
    if damaged is not None:
        raise errors.CheckpointError(
            f"'{path}' is damaged: the checksum of '{damaged}' is wrong."
        )


def _damaged(path: pathlib.Path, error: Exception) -> errors.CheckpointError:
    """Puts the error of a reader of archives into words."""
    if isinstance(error, errors.CheckpointError):
        return error
    return errors.CheckpointError(f"'{path}' is damaged or cut off: {error}.")


def in_hdf5(path: pathlib.Path) -> list[LayerBundle]:
    """Returns the layers with tables in a `.weights.h5` file.

    Raises:
      tfembed.errors.UnsupportedError: h5py is not installed.
      tfembed.errors.CheckpointError: the file is damaged, or compressed.
    """
    h5py = optional("h5py", "A '.weights.h5' file")
    arrays: dict[str, dict[str, dict[int, tuple[int, int]]]] = {}

    def visit(name: str, item: Any) -> None:
        match = _TABLE_FILE.fullmatch(name)
        if match is None or not hasattr(item, "shape"):
            return
        offset = item.id.get_offset()
        size = item.id.get_storage_size()
        if not size:
            offset = 0
        if offset is None or item.dtype.itemsize != 1:
            raise errors.CheckpointError(
                f"'{path}' has compressed arrays; Keras writes none."
            )
        of_layer = arrays.setdefault(match[1], {})
        of_layer.setdefault(match[2], {})[int(match[3])] = (offset, size)

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except (*_DAMAGES, ArithmeticError, LookupError, TypeError) as error:
        raise _damaged(path, error) from None
    found = []
    for folder, of_layer in sorted(arrays.items()):
        files = {
            name: _segments(path, name, chunks)
            for name, chunks in of_layer.items()
        }
        if f"{_ROWS}.index" in files:
            layer = folder.removesuffix("/vars")
            found.append(_layer(path, layer, files, {}))
    return found


def arrays(path: pathlib.Path) -> dict[str, Column]:
    """Returns the weights in a `.keras` or `.weights.h5` file, by their paths.

    Files of tables are none. Without h5py a `.keras` file shows no weights.

    Raises:
      tfembed.errors.CheckpointError: the file is damaged, or compressed.
    """
    try:
        h5py: Any = importlib.import_module("h5py")
    except ImportError:
        return {}
    found: dict[str, Column] = {}

    def visit(name: str, item: Any) -> None:
        if not hasattr(item, "shape") or _TABLE_FILE.fullmatch(name):
            return
        dtype = item.attrs.get("dtype", item.dtype.name)
        if dtype not in _SIZES or item.dtype.itemsize != _SIZES[dtype]:
            return  # Texts and objects, which are no weights.
        size = int(item.id.get_storage_size())
        offset = item.id.get_offset() if size else 0
        if offset is None or size != item.size * _SIZES[dtype]:
            raise errors.CheckpointError(
                f"'{path}' has compressed arrays; Keras writes none."
            )
        file = FileBytes(path, [(begin + offset, size)], f"{path}: {name}")
        shape = tuple(map(int, item.shape))
        rows = shape[0] if shape else 1
        part = Part(file, 0, size, None, 0, rows, Encoding.NUMBERS)
        found[name] = Column(name, dtype, shape, [part])

    try:
        if not zipfile.is_zipfile(path):
            begin = 0
            with h5py.File(path, "r") as file:
                file.visititems(visit)
            return found
        with zipfile.ZipFile(path) as archive:
            if _WEIGHTS not in archive.namelist():
                return {}
            member = archive.getinfo(_WEIGHTS)
            begin = _begin(path, member)
            with archive.open(member) as of, h5py.File(of, "r") as file:
                file.visititems(visit)
    except (*_DAMAGES, ArithmeticError, LookupError, TypeError) as error:
        raise _damaged(path, error) from None
    return found


def _segments(
    path: pathlib.Path, name: str, chunks: dict[int, tuple[int, int]]
) -> FileBytes:
    if sorted(chunks) != list(range(len(chunks))):
        raise errors.CheckpointError(
            f"'{path}' is damaged: '{name}' lacks a part."
        )
    in_order = [chunks[i] for i in range(len(chunks))]
    return FileBytes(path, in_order, f"{path}: {name}")


def _layer(
    path: pathlib.Path,
    layer: str,
    files: dict[str, FileBytes],
    config: dict[str, dict[str, dict[str, str]]],
) -> LayerBundle:
    def data(number: int, num_files: int) -> FileBytes:
        name = f"{_ROWS}.data-{number:05d}-of-{num_files:05d}"
        if name not in files:
            raise errors.CheckpointError(
                f"'{path}' is damaged: layer '{layer}' lacks '{name}'."
            )
        return files[name]

    # A layer may store its files under a layer that it holds, in a subfolder.
    owner = layer
    while owner not in config and "/" in owner:
        owner = owner.rpartition("/")[0]
    return LayerBundle(
        layer, Bundle(files[f"{_ROWS}.index"], data), config.get(owner, {})
    )


def _member(path: pathlib.Path, member: zipfile.ZipInfo) -> FileBytes:
    """Returns the bytes of a file that is stored in an archive."""
    begin = _begin(path, member)
    name = f"{path}: {member.filename}"
    return FileBytes(path, [(begin, member.file_size)], name)


def _begin(path: pathlib.Path, member: zipfile.ZipInfo) -> int:
    """Returns where the bytes of a file begin that an archive has as they are."""
    name = f"{path}: {member.filename}"
    if member.compress_type != zipfile.ZIP_STORED:
        raise errors.CheckpointError(
            f"'{name}' is compressed; Keras stores files as they are. Unpack "
            "the archive and give the path of its 'rows.index'."
        )
    if member.flag_bits & 1:
        raise errors.CheckpointError(f"'{name}' is encrypted.")
    archive = FileBytes(path)
    head = archive.read(member.header_offset, 30)
    name_size, extra_size = struct.unpack("<HH", head[26:30])
    return member.header_offset + 30 + int(name_size) + int(extra_size)


def _config(
    archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]
) -> dict[str, dict[str, dict[str, str]]]:
    """Returns the policies of the model's config, by layer and table."""
    member = members.get("config.json")
    if member is None or member.file_size > _MOST_CONFIG_BYTES:
        return {}
    try:
        config = json.loads(archive.read(member))
    except (ValueError, RecursionError) as error:
        raise errors.CheckpointError(
            f"'{archive.filename}' is damaged: its config.json is no JSON: {error}."
        ) from None
    counts: dict[str, int] = {}
    found = {}
    for layer in _layers(config):
        name = _snake_case(layer["class_name"])
        n = counts[name] = counts.get(name, -1) + 1
        folder = f"layers/{name}_{n}" if n else f"layers/{name}"
        found[folder] = _policies(layer.get("config", {}))
    return found


def _layers(config: Any) -> Iterator[dict[str, Any]]:
    """Yields the layers of a model, in the order of Keras' numbers."""
    if not isinstance(config, dict):
        return
    inner = config.get("config")
    listed = inner.get("layers") if isinstance(inner, dict) else None
    for layer in listed if isinstance(listed, list) else []:
        if isinstance(layer, dict) and isinstance(layer.get("class_name"), str):
            yield layer


def _snake_case(name: str) -> str:
    """Returns the folder name that Keras gives a layer of this class."""
    name = re.sub(r"\W+", "", name.rpartition(">")[2])
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _policies(config: Any) -> dict[str, dict[str, str]]:
    """Returns the policies of each TableConfig of a layer, or of the layer."""
    found = {}
    own = _described(config) if isinstance(config, dict) else {}
    if own:
        found[""] = own
    described = config.get("described", {}) if isinstance(config, dict) else {}
    tables = described.get("tables", []) if isinstance(described, dict) else []
    for table in tables if isinstance(tables, list) else []:
        fields = table.get("fields") if isinstance(table, dict) else None
        if isinstance(fields, dict) and isinstance(fields.get("name"), str):
            found[fields["name"]] = _described(fields)
    return found


def _described(fields: dict[str, Any]) -> dict[str, str]:
    """Formats the policies among a config's fields as calls."""
    found = {}
    for kind in ("admission", "eviction", "expiry"):
        policy = fields.get(kind)
        if not isinstance(policy, dict):
            continue
        arguments = policy.get("fields", policy)
        if not isinstance(arguments, dict):
            continue
        given = ", ".join(
            f"{argument}={value!r}"
            for argument, value in arguments.items()
            if value is not None and argument != "class_name"
        )
        found[kind] = f"{policy.get('class_name', kind)}({given})"
    return found
