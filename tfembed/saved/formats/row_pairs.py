"""The tables in raw pairs of files: docs/formats/row_files.md."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Sequence

from tfembed import errors
from tfembed.saved.checksum import crc32c
from tfembed.saved.column import Column, Encoding, Part, raw_strings
from tfembed.saved.file_bytes import FileBytes
from tfembed.saved.formats.bundle import DTYPES
from tfembed.saved.saved_table import SavedTable

__all__ = ["RowDtypes", "stem_of", "stems", "tables"]

_HEAD = "tfembed.row_files 1"
_MOST_MANIFEST_BYTES = 4 << 20
_OF_SHARD = re.compile(r"_mht_(\d+)of(\d+)(_rank(\d+)_size(\d+))?$")
_SIZES = {**dict(DTYPES.values()), "string": 0}
_NAMES = {"half": "float16", "float": "float32", "double": "float64"}


@dataclasses.dataclass(frozen=True)
class RowDtypes:
    """The dtypes of files without a manifest, for instance those of TFRA.

    Attributes:
      keys: the dtype of the keys.
      rows: the dtype of the rows.
    """

    keys: str = "int64"
    rows: str = "float32"

    def __post_init__(self) -> None:
        for name, allowed in (
            (self.keys, ("int64", "int32", "string")),
            (self.rows, tuple(_SIZES)),
        ):
            if name not in allowed:
                raise errors.ArgumentError(
                    f"A dtype must be one of {', '.join(allowed)}; got {name!r}."
                )


@dataclasses.dataclass(frozen=True)
class _Manifest:
    """The manifest of a set of files.

    Attributes:
      save: the id of the save.
      table: the name of the table.
      dtypes: the dtypes of the files.
      width: the number of elements of a row.
      files: the size in bytes and the checksum of each file, by name.
    """

    save: str
    table: str
    dtypes: RowDtypes
    width: int
    files: dict[str, tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class _Pair:
    """One pair: the parts of its columns, and the facts about both files."""

    keys: Part
    rows: Part
    dtypes: RowDtypes
    width: int
    table: str


def stem_of(name: str) -> str | None:
    """Returns the common prefix of a pair's names; None for other files."""
    for end in ("-keys", "-values"):
        if name.endswith(end):
            return name.removesuffix(end)
    return None


def stems(folder: pathlib.Path) -> list[str]:
    """Returns the prefixes of the pairs in a folder."""
    found = {
        path.name.removesuffix("-keys")
        for path in folder.iterdir()
        if path.name.endswith("-keys") and not path.name.startswith(".")
    }
    return sorted(found)


def tables(
    folder: pathlib.Path, found: Sequence[str], dtypes: RowDtypes
) -> list[SavedTable]:
    """Returns the tables of a folder's pairs, all shards of a table as one.

    Args:
      folder: the folder of the files.
      found: the prefixes of the pairs.
      dtypes: the dtypes of files without a manifest.

    Raises:
      tfembed.errors.CheckpointError: files are missing or damaged, or come
        from two saves.
    """
    by_table: dict[str, list[str]] = {}
    for stem in found:
        by_table.setdefault(_OF_SHARD.sub("", stem), []).append(stem)
    return [
        _table(folder, name, sorted(of_table, key=_shard_order), dtypes)
        for name, of_table in by_table.items()
    ]


def _shard_order(stem: str) -> tuple[int, ...]:
    match = _OF_SHARD.search(stem)
    if match is None:
        return (0, 0)
    return (int(match[4] or 0), int(match[1]))


def _table(
    folder: pathlib.Path,
    name: str,
    of_table: Sequence[str],
    dtypes: RowDtypes,
) -> SavedTable:
    kinds = {(m[2], m[5]) for stem in of_table if (m := _OF_SHARD.search(stem))}
    if len(kinds) > 1:
        raise errors.CheckpointError(
            f"'{folder}' holds files of '{name}' from several saves: of "
            f"{' and of '.join(sorted(n for n, _ in kinds))} shards. Name one of "
            "the files."
        )
    pairs = [_pair(folder, stem, dtypes) for stem in of_table]
    first = pairs[0]
    for pair in pairs:
        if (pair.dtypes, pair.width) != (first.dtypes, first.width):
            raise errors.CheckpointError(
                f"The shards of '{name}' in '{folder}' differ: {first.dtypes}, "
                f"width {first.width}, and {pair.dtypes}, width {pair.width}."
            )
    keys, num_rows = [], 0
    rows = []
    for pair in pairs:
        keys.append(dataclasses.replace(pair.keys, first_row=num_rows))
        rows.append(dataclasses.replace(pair.rows, first_row=num_rows))
        num_rows += pair.keys.rows
    columns = {
        "keys": Column(f"{name}-keys", first.dtypes.keys, (num_rows,), keys),
        "rows": Column(
            f"{name}-values", first.dtypes.rows, (num_rows, first.width), rows
        ),
    }
    return SavedTable(
        name=first.table or name,
        path=name,
        key_dtype=first.dtypes.keys,
        dtype=first.dtypes.rows,
        width=first.width,
        num_rows=num_rows,
        columns=columns,
        num_bytes={kind: columns[kind].size for kind in columns},
        shard_sizes=tuple(pair.keys.rows for pair in pairs),
    )


def _pair(folder: pathlib.Path, stem: str, dtypes: RowDtypes) -> _Pair:
    manifest = _read_manifest(folder, stem)
    keys_file, keys_crc = _open(folder, f"{stem}-keys", manifest)
    rows_file, rows_crc = _open(folder, f"{stem}-values", manifest)
    if manifest is not None:
        dtypes = manifest.dtypes
    key_bytes, each = _SIZES[dtypes.keys], _SIZES[dtypes.rows]
    if key_bytes:
        n, left = divmod(keys_file.size, key_bytes)
    else:
        whole = Part(
            keys_file, 0, keys_file.size, None, 0, 0, Encoding.RAW_STRINGS
        )
        n, left = sum(1 for _ in raw_strings(whole)), 0
    if manifest is not None:
        width = manifest.width
    elif each:
        width = rows_file.size // (n * each) if n else 0
    else:
        raise errors.CheckpointError(
            f"'{folder}' has no manifest for '{stem}', and rows of strings do "
            "not show their width. TFRA's files of strings hold addresses of "
            "memory, which cannot be read."
        )
    if left or (each and rows_file.size != n * width * each):
        raise errors.CheckpointError(
            f"'{rows_file.name}' has {rows_file.size} bytes, which do not "
            f"divide into rows of {dtypes.rows} for the {keys_file.size} bytes "
            f"of {dtypes.keys} keys beside it. Give the dtypes of the files."
        )

    def part(file: FileBytes, crc: int | None, is_numbers: bool) -> Part:
        encoding = Encoding.NUMBERS if is_numbers else Encoding.RAW_STRINGS
        return Part(file, 0, file.size, crc, 0, n, encoding)

    return _Pair(
        part(keys_file, keys_crc, key_bytes > 0),
        part(rows_file, rows_crc, each > 0),
        dtypes,
        width,
        manifest.table if manifest is not None else "",
    )


def _open(
    folder: pathlib.Path, name: str, manifest: _Manifest | None
) -> tuple[FileBytes, int | None]:
    """Opens a file, if need be under its temporary name, with its checksum."""
    if manifest is None:
        return FileBytes(folder / name), None
    if name not in manifest.files:
        raise errors.CheckpointError(
            f"The manifest beside '{folder / name}' does not name that file."
        )
    pending = folder / f".tfembed_new.{manifest.save}.{name}"
    file = FileBytes(pending if pending.exists() else folder / name)
    size, crc = manifest.files[name]
    if file.size != size:
        raise errors.CheckpointError(
            f"'{file.name}' is damaged or cut off: it has {file.size} bytes in "
            f"place of {size}."
        )
    return file, crc


def _read_manifest(folder: pathlib.Path, stem: str) -> _Manifest | None:
    path = folder / f".tfembed.{re.sub(r'_mht_[0-9]+of', '_mht_of', stem)}"
    if not path.exists():
        return None
    file = FileBytes(path)
    if file.size > _MOST_MANIFEST_BYTES:
        raise errors.CheckpointError(
            f"'{path}' has {file.size} bytes, more than a manifest has."
        )
    text = file.read(0, file.size)
    body, end, checksum = text.rpartition(b"\nend ")
    if not text.startswith(f"{_HEAD}\n".encode()):
        raise errors.CheckpointError(
            f"'{path}' begins {text[:40]!r}; this release reads '{_HEAD}'."
        )
    try:
        if not end or int(checksum, 16) != crc32c(body + b"\n"):
            raise ValueError("its checksum is another")
        return _parse(body.decode())
    except (KeyError, ValueError) as error:
        raise errors.CheckpointError(
            f"'{path}' is damaged or cut off: {error}."
        ) from None


def _parse(text: str) -> _Manifest:
    fields = {}
    files = {}
    for line in text.split("\n")[1:]:
        field, _, value = line.partition(" ")
        if field == "file":
            size, crc, name = value.split(" ", 2)
            if "/" in name:
                raise ValueError(f"it names a file of another folder: {name!r}")
            files[name] = (int(size), int(crc, 16))
        else:
            fields[field] = value
    table = fields["table"].encode().decode("unicode_escape")
    dtypes = RowDtypes(
        *(_NAMES.get(fields[k], fields[k]) for k in ("keys", "values"))
    )
    width = int(fields["dim"])
    if width < 0 or len(fields["save"]) != 16:
        raise ValueError("a field is none")
    int(fields["save"], 16)
    return _Manifest(
        fields["save"],
        table.encode("latin-1").decode(errors="replace"),
        dtypes,
        width,
        files,
    )
