"""The tables of a checkpoint: docs/formats/hash_table.md, and other layouts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

from tfembed import errors
from tfembed.saved import file_bytes
from tfembed.saved.column import Column
from tfembed.saved.formats.bundle import Bundle
from tfembed.saved.formats.sealed_table import SEALED, sealed_table
from tfembed.saved.saved_table import NO_NAME, SavedTable

__all__ = [
    "SavedVariable",
    "column_as_table",
    "tables",
    "variable_as_table",
    "variables",
]

_FORMAT = "tfembed.hash_table"
_VERSIONS = ("1", "2", "3")  # Drafts called the same layout 2 and 3.

# A shard of a variable, as TFRA's Savers name it; and that part of a tensor's
# name.
_SHARD = re.compile(r"(.*)_mht_(\d+)of(\d+)", re.DOTALL)
_OF_SHARD = re.compile(r"_mht_\d+of\d+(?=[/-])")

_ATTRIBUTES = "/.ATTRIBUTES/"
_VALUE = f"{_ATTRIBUTES}VARIABLE_VALUE"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# TensorFlow and tfembed save the tables of an embedding under this name.
_EMBEDDING_SAVER = b"tf.TPUEmbeddingCallback"

# The dtype names of a layout that differ from those of NumPy.
_NAMES = {"half": "float16", "float": "float32", "double": "float64"}

_EVICTIONS = {
    "steps_ago": "least recent first, by training steps",
    "seconds_since_1970": "least recent first, by seconds",
    "writes": "least frequent first",
}


@dataclasses.dataclass(frozen=True)
class SavedVariable:
    """A tensor of a checkpoint that belongs to no table.

    Attributes:
      name: the path of the variable.
      dtype: TensorFlow's name of the dtype.
      shape: the shape of the variable.
      num_bytes: the number of bytes in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The layout of a hash table, parsed from its text.

    Attributes:
      key_dtype: the dtype of the keys.
      seed: the seed of the initial rows.
      rule: the update rule that the slots belong to.
      slots: the width and the initial value of each slot.
      counters: the meaning of the eviction policy's counters.
    """

    key_dtype: str = "int64"
    seed: int | None = None
    rule: str | None = None
    slots: Mapping[str, tuple[int, float]] = dataclasses.field(
        default_factory=dict
    )
    counters: str = ""


def tables(bundle: Bundle) -> list[SavedTable]:
    """Returns all tables of a checkpoint: hash, sealed and static tables.

    TFRA's Savers write each shard of a variable as a table of its own,
    `<name>_mht_<i>of<n>`; these are one table, as in raw files.

    Raises:
      tfembed.errors.CheckpointError: the index is damaged, a table is in a
        later format, or a shard is missing.
    """
    found = []
    shards: dict[tuple[str, int], dict[int, SavedTable]] = {}
    for stem, between in _hash_table_stems(bundle):
        table = _hash_table(bundle, stem, between)
        match = _SHARD.fullmatch(table.path)
        if match is None:
            found.append(table)
            continue
        of_name = shards.setdefault((match[1], int(match[3])), {})
        of_name[int(match[2])] = table
    found += [
        _of_shards(bundle, name, num_shards, numbered)
        for (name, num_shards), numbered in shards.items()
    ]
    found += _sealed_tables(bundle)
    found += _static_tables(bundle)
    return found


def _of_shards(
    bundle: Bundle, name: str, num_shards: int, shards: Mapping[int, SavedTable]
) -> SavedTable:
    """Returns the table that consists of these shards, numbered from 1."""
    missing = sorted(set(range(1, num_shards + 1)) - set(shards))
    if missing:
        stems = ", ".join(f"'{name}_mht_{i}of{num_shards}'" for i in missing)
        raise errors.CheckpointError(
            f"'{bundle.index.name}' has {len(shards)} of the {num_shards} shards "
            f"of table '{name}'; missing: {stems}. Restore another checkpoint."
        )
    tables = [shards[i] for i in sorted(shards)]
    first = tables[0]
    for table in tables:
        kinds = [
            (one.key_dtype, one.dtype, one.width, sorted(one.columns))
            for one in (first, table)
        ]
        if kinds[0] != kinds[1]:
            raise errors.CheckpointError(
                f"The shards of table '{name}' in '{bundle.index.name}' differ: "
                f"keys, rows, width and columns are {kinds[0]} in '{first.path}' "
                f"and {kinds[1]} in '{table.path}'."
            )
    columns = {
        kind: _joined([table.columns[kind] for table in tables])
        for kind in first.columns
    }
    return dataclasses.replace(
        first,
        name=name,
        path=name,
        num_rows=sum(table.num_rows for table in tables),
        columns=columns,
        num_bytes=_bytes_by_kind(columns, {}, {}),
        shard_sizes=tuple(table.num_rows for table in tables),
    )


def _joined(columns: Sequence[Column]) -> Column:
    """Returns the rows of one column after those of another."""
    parts, num_rows = [], 0
    for column in columns:
        parts += [
            dataclasses.replace(part, first_row=part.first_row + num_rows)
            for part in column.parts
        ]
        num_rows += column.rows
    first = columns[0]
    return Column(
        _OF_SHARD.sub("", first.name),
        first.dtype,
        (num_rows, *first.shape[1:]),
        parts,
    )


def variables(
    bundle: Bundle, found: list[SavedTable]
) -> Iterator[SavedVariable]:
    """Yields the tensors that belong to none of the tables `found`."""
    taken = {
        column.name
        for table in found
        for column in (*table.columns.values(), *table.waiting.values())
    }
    owners = tuple(
        name.removesuffix(f"{_ATTRIBUTES}keys") + "/mark/" for name in taken
    )
    for name in bundle.names():
        is_noted = re.search(
            r"/\.ATTRIBUTES/(layout|name|(waiting|rule_state)/.*)$|-waiting/|-policies$",
            name,
        )
        if (
            name in taken
            or _OF_SHARD.sub("", name) in taken
            or name == _GRAPH
            or is_noted
            or name.startswith(owners)
        ):
            continue
        entry = bundle.entry(name)
        yield SavedVariable(
            _unescaped(name.removesuffix(_VALUE)),
            entry.dtype,
            entry.shape,
            bundle.stored_bytes(name),
        )


def variable_as_table(bundle: Bundle, name: str) -> SavedTable | None:
    """Returns a variable of rank 2 as a table of ids from 0, or None."""
    for tensor in (f"{name}{_VALUE}", name):
        if tensor in bundle and len(bundle.entry(tensor).shape) == 2:
            return column_as_table(name, bundle.column(tensor))
    return None


def column_as_table(name: str, column: Column) -> SavedTable:
    """Returns a tensor of rank 2 as a table of ids from 0."""
    return _static_table(name, column, {})


def _hash_table_stems(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """Yields the prefix of each table's tensors, and the separator after it."""
    for name in bundle.names():
        match = re.fullmatch(r"(.*)([/-])keys", name, re.DOTALL)
        if match is None or match[1].endswith("waiting"):
            continue
        stem, between = match[1], match[2]
        if f"{stem}{between}values" not in bundle:
            continue
        keys = bundle.entry(name)
        values = bundle.entry(f"{stem}{between}values")
        if (
            keys.dtype in ("int32", "int64", "string")
            and len(keys.shape) == 1
            and len(values.shape) == 2
        ):
            yield stem, between


def _hash_table(bundle: Bundle, stem: str, between: str) -> SavedTable:
    name = stem.removesuffix("/.ATTRIBUTES").removesuffix("/.ATTRIBUTES/table")
    name = re.sub(r"_mht_1of1$", "", name)
    keys = bundle.column(f"{stem}{between}keys")
    rows = bundle.column(f"{stem}{between}values")
    width = rows.shape[1]
    layout = _layout(bundle, f"{stem}{between}layout", name, width)
    if layout is None:
        layout = _layout_by_names(bundle, f"{stem}-", keys.dtype, width)
    columns = {"keys": keys, "rows": rows}
    for slot, (slot_width, _) in layout.slots.items():
        tensor = f"{stem}{between}slots/{slot}"
        if tensor not in bundle and layout.rule:
            tensor = f"{stem}-slots/{layout.rule}/{slot}"
        columns[f"slots/{slot}"] = _column(
            bundle, tensor, name, (keys.rows, slot_width)
        )
    if layout.counters:
        tensor = f"{stem}{between}notes"
        columns["counters"] = _column(bundle, tensor, name, (keys.rows,))
    if keys.rows != rows.rows:
        raise errors.CheckpointError(
            f"Table '{name}' is damaged: it has {keys.rows} keys and {rows.rows} "
            "rows."
        )
    waiting, filters = _waiting(bundle, f"{stem}{between}waiting/")
    num_waiting = waiting["keys"].rows if waiting else 0
    path = _unescaped(name)
    return SavedTable(
        name=_given_name(bundle, f"{stem}{between}name") or path,
        path=path,
        key_dtype=layout.key_dtype,
        dtype=rows.dtype,
        width=width,
        num_rows=keys.rows,
        columns=columns,
        rule=layout.rule,
        slot_widths={slot: w for slot, (w, _) in layout.slots.items()},
        slot_initial_values={slot: v for slot, (_, v) in layout.slots.items()},
        seed=layout.seed,
        counters=layout.counters,
        num_waiting=num_waiting,
        policies=_policies(bundle, name, layout, num_waiting, filters),
        num_bytes=_bytes_by_kind(columns, waiting, filters),
        waiting=waiting,
    )


def _sealed_tables(bundle: Bundle) -> Iterator[SavedTable]:
    """Yields the tables that `tfembed.export` wrote."""
    for tensor in bundle.names():
        stem = tensor.removesuffix(SEALED)
        if stem == tensor or bundle.entry(tensor).dtype != "uint8":
            continue
        column = bundle.column(tensor)
        if len(column.shape) == 1:
            path = _unescaped(re.sub(r"_mht_1of1$", "", stem))
            name = _given_name(bundle, f"{stem}{_ATTRIBUTES}name")
            yield sealed_table(path, name or path, column)


def _given_name(bundle: Bundle, tensor: str) -> str | None:
    """Returns the program's name of a table; None where the file has none."""
    text = bundle.scalar(tensor)
    if not isinstance(text, bytes) or text.decode(errors="replace") == NO_NAME:
        return None
    return text.decode(errors="replace")


def _layout(
    bundle: Bundle, tensor: str, table: str, width: int
) -> _Layout | None:
    """Parses the text beside a table; None where the file has no text."""
    text = bundle.scalar(tensor)
    if not isinstance(text, bytes):
        return None
    lines = [
        line.split(" ") for line in text.decode(errors="replace").split("\n")
    ]
    if lines[0][:1] != [_FORMAT] or lines[0][1:] not in [
        [v] for v in _VERSIONS
    ]:
        raise errors.CheckpointError(
            f"Table '{table}' is in the format {' '.join(lines[0])!r}; this "
            f"release reads '{_FORMAT} 1'."
        )
    fields: dict[str, str] = {}
    slots = {}
    try:
        for field, *values in lines[1:]:
            if field in ("slot", "row_slot"):
                slot, initial = values
                slots[slot] = (width if field == "slot" else 1, float(initial))
            else:
                (fields[field],) = values
        seed = int(fields["seed"])
        is_same = int(fields["dim"]) == width
    except (KeyError, ValueError):
        raise errors.CheckpointError(
            f"Table '{table}' is damaged: its layout {text!r} cannot be read."
        ) from None
    if not is_same:
        raise errors.CheckpointError(
            f"Table '{table}' is damaged: its layout says dim {fields['dim']}, "
            f"and its rows have {width}."
        )
    key_dtype = fields.get("keys", "int64")
    return _Layout(
        key_dtype=_NAMES.get(key_dtype, key_dtype),
        # Programs give the seed as a signed number.
        seed=file_bytes.signed(seed & (1 << 64) - 1),
        rule=fields.get("rule"),
        slots=slots,
        counters=fields.get("notes", ""),
    )


def _layout_by_names(
    bundle: Bundle, stem: str, key_dtype: str, width: int
) -> _Layout:
    """Guesses the layout of tensors that a Saver of TensorFlow 1 wrote."""
    slots = {}
    rule = None
    pattern = re.compile(re.escape(stem) + r"slots/([^/]+)/([^/]+)")
    for name in bundle.names(f"{stem}slots/"):
        if match := pattern.fullmatch(name):
            rule = match[1]
            slots[match[2]] = (bundle.entry(name).shape[-1], 0.0)
    counters = ""
    if f"{stem}policies" in bundle:
        for kinds in bundle.column(f"{stem}policies").stream():
            counters = kinds[0].decode(errors="replace")
    return _Layout(
        key_dtype=key_dtype, rule=rule, slots=slots, counters=counters
    )


def _column(
    bundle: Bundle, tensor: str, table: str, shape: tuple[int, ...]
) -> Column:
    """Returns a tensor of a table; raises an error if its shape is another."""
    column = bundle.column(tensor)
    if column.shape != shape:
        raise errors.CheckpointError(
            f"Table '{table}' is damaged: its tensor '{tensor}' has shape "
            f"{list(column.shape)}; {list(shape)} fits the table."
        )
    return column


def _waiting(
    bundle: Bundle, prefix: str
) -> tuple[dict[str, Column], dict[str, Column]]:
    """Returns the keys that wait for admission, their counts, and filters."""
    keys = {}
    if f"{prefix}keys" in bundle and f"{prefix}seen" in bundle:
        keys = {
            name: bundle.column(f"{prefix}{name}") for name in ("keys", "seen")
        }
    filters = {
        name.removeprefix(prefix): bundle.column(name)
        for name in bundle.names(prefix)
        if name.startswith((f"{prefix}bloom_", f"{prefix}counters"))
    }
    return keys, {name: f for name, f in filters.items() if f.size}


def _policies(
    bundle: Bundle,
    name: str,
    layout: _Layout,
    num_waiting: int,
    filters: Mapping[str, Column],
) -> dict[str, str]:
    policies = {}
    if filters:
        policies["admission"] = "by a Bloom filter"
    elif num_waiting:
        policies["admission"] = "by a count of keys"
    if layout.counters:
        policies["eviction"] = _EVICTIONS.get(layout.counters, layout.counters)
    steps = bundle.scalar(f"{name}/trained_steps{_VALUE}")
    if isinstance(steps, int):
        policies["expiry"] = f"by training steps, {steps} so far"
    return policies


def _bytes_by_kind(
    columns: Mapping[str, Column],
    waiting: Mapping[str, Column],
    filters: Mapping[str, Column],
) -> dict[str, int]:
    kinds = {
        name: columns[name].size
        for name in ("keys", "rows", "counters")
        if name in columns
    }
    slots = [c.size for name, c in columns.items() if name.startswith("slots/")]
    waits = [column.size for column in (*waiting.values(), *filters.values())]
    if slots:
        kinds["slots"] = sum(slots)
    if waits:
        kinds["waiting"] = sum(waits)
    return kinds


def _static_tables(bundle: Bundle) -> list[SavedTable]:
    """Returns the variables that an embedding keeps for a fixed vocabulary."""
    found = []
    for owner in _embedding_paths(bundle):
        prefix = f"{owner}/" if owner else ""
        columns: dict[str, Column] = {}
        for name in bundle.names(prefix):
            if not name.endswith(_VALUE):
                continue
            path = name.removeprefix(prefix).removesuffix(_VALUE)
            # A tf.function of the program made it.
            if path.startswith("_variables/"):
                path = path.removeprefix("_variables/").replace("/", ".S")
            if "/" not in path and len(bundle.entry(name).shape) == 2:
                columns[_unescaped(path)] = bundle.column(name)
        for name, column in columns.items():
            # The table's own name may have slashes.
            parents = [n for n in columns if name.startswith(f"{n}/")]
            if parents:
                continue
            slots = {
                other.removeprefix(f"{name}/"): slot
                for other, slot in columns.items()
                if other.startswith(f"{name}/") and slot.rows == column.rows
            }
            table = _static_table(f"{prefix}{name}", column, slots)
            found.append(dataclasses.replace(table, name=name))
    return found


def _static_table(
    path: str, column: Column, slots: Mapping[str, Column]
) -> SavedTable:
    columns = {
        "rows": column,
        **{f"slots/{slot}": one for slot, one in slots.items()},
    }
    return SavedTable(
        name=path,
        path=path,
        key_dtype="int64",
        dtype=column.dtype,
        width=column.shape[1],
        num_rows=column.rows,
        columns=columns,
        has_vocabulary=True,
        slot_widths={slot: one.shape[1] for slot, one in slots.items()},
        num_bytes=_bytes_by_kind(columns, {}, {}),
    )


def _embedding_paths(bundle: Bundle) -> list[str]:
    """Returns the paths of the objects whose variables are tables."""
    graph = bundle.scalar(_GRAPH)
    if not isinstance(graph, bytes):
        return []
    paths = []
    try:
        for number, node in file_bytes.fields(graph):
            if number != 1 or not isinstance(node, bytes):
                continue
            for field, saver in file_bytes.fields(node):
                if field != 4 or not isinstance(saver, bytes):
                    continue
                named = dict(file_bytes.fields(saver))
                path = named.get(2, b"")
                if named.get(1) == _EMBEDDING_SAVER and isinstance(path, bytes):
                    paths.append(path.decode(errors="replace"))
    except errors.CheckpointError as error:
        raise errors.CheckpointError(
            f"'{bundle.index.name}' is damaged: its object graph: {error}."
        ) from None
    return paths


def _unescaped(path: str) -> str:
    """Decodes a name of the object graph: `.S` is a slash, `..` is a dot."""
    return re.sub(r"\.([.S])", lambda m: "/" if m[1] == "S" else ".", path)
