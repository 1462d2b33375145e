"""Updates of live models: what changed in tables since the export."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfembed import errors
from tfembed.export.perfect_hash import PerfectHash, mix
from tfembed.export.row_format import NotStored, RowFormat
from tfembed.export.saved_model import SavedModelGraph
from tfembed.export.sealed_table import HEAD_BYTES, Layout, absent, checksum
from tfembed.export.stock_lookup import fingerprints_of
from tfembed.monitoring.found_tables import require_tables
from tfembed.monitoring.health import saved_path
from tfembed.saved.formats.bundle import DTYPES
from tfembed.saved.formats.sealed_table import SEALED
from tfembed.saved.saved_table import SavedTable
from tfembed.saved.saved_tables import open_saved
from tfembed.tables.hash_table import HashTable

__all__ = ["Changes", "changed"]

_Array: TypeAlias = "npt.NDArray[Any]"

# The keys of a table that are read and compared at once.
_KEYS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Changes:
    """The changes of one table since an export.

    Attributes:
      keys: the keys of new and changed rows [n], distinct: integers or strings.
      rows: their rows [n, dim].
      gone: the keys that have no row any more [m], none of them in `keys`.
    """

    keys: Any = ()
    rows: Any = ()
    gone: Any = ()


def changed(
    source: Any, *, since: str | os.PathLike[str]
) -> dict[str, npt.NDArray[np.uint8]]:
    """Returns what a live model needs in order to serve the rows of today.

    Each update has all that changed since the export, and takes the place of
    the one before. In memory are two bytes for each key of the export, those keys
    and rows that changed, and 8 bytes for each key of a table in memory.

    Args:
      source: a checkpoint or SavedModel, by its path; or a table, layer, model
        or embedding; or a dict of tables, or of `Changes` that the caller
        knows, by the names of tables: tables that it lacks stay as they are
        served.
      since: the live model, as `to_stock(..., live=True)` wrote it.

    Returns:
      The inputs of the signature `tfembed_update`.

    Raises:
      tfembed.errors.ArgumentError: `since` is not live, `source` has no table,
        or a row has no form in the rows of `since`.
      tfembed.errors.MissingTableError: a table is in one of both alone.
      tfembed.errors.DtypeError: keys or rows have another dtype or width.
      tfembed.errors.CheckpointError: a file is damaged, or no SavedModel.

    Example:
      tfembed.export.to_stock("served", "ranker/1", live=True)
      ...  # The model is trained on.
      update = tfembed.export.changed(model, since="ranker/1")
      take = stock.signatures["tfembed_update"]
      take(**update)
    """
    served = _served_tables(pathlib.Path(since))
    tables = _tables_of(source, served)
    return {
        name: (
            table.update(tables[name])
            if name in tables
            else np.zeros(0, np.uint8)
        )
        for name, table in served.items()
    }


def _served_tables(since: pathlib.Path) -> dict[str, _ServedTable]:
    """Returns the tables of a live model, by the inputs that update them."""
    numbers = SavedModelGraph(since).update_inputs()
    if not numbers:
        raise errors.ArgumentError(
            f"`since` must be a live model; '{since}' has no signature "
            "'tfembed_update'. Export it by `to_stock(..., live=True)`."
        )
    tables = {
        table.columns["keys"].name: table
        for table in open_saved(since).values()
        if "keys" in table.columns
    }
    tensors = sorted(tensor for tensor in tables if tensor.endswith(SEALED))
    return {
        name: _ServedTable(tables[tensors[number]])
        for name, number in sorted(numbers.items())
    }


def _tables_of(
    source: Any, served: Mapping[str, _ServedTable]
) -> dict[str, Any]:
    """Returns the tables of a source, by the inputs of the served model."""
    path = saved_path(source)
    if path is not None:
        saved = open_saved(path)
        return {i: saved[table.name] for i, table in served.items()}
    if not tf.executing_eagerly():
        raise errors.UnsupportedError(
            "`changed` reads tables in eager mode, outside of tf.function. In "
            "programs with graphs and sessions give it the path of a checkpoint."
        )
    known = {table.name: name for name, table in served.items()}
    is_part = isinstance(source, Mapping)
    tables = {
        name: table
        if isinstance(table, Changes)
        else require_tables(table)[0].rows
        for name, table in (
            source.items()
            if is_part
            else [(one.name, one.rows) for one in require_tables(source)]
        )
    }
    lost = sorted(tables.keys() - known if is_part else known - tables.keys())
    if lost:
        raise errors.MissingTableError(
            f"Tables {lost} are not in "
            f"{'the served model' if is_part else '`source`'}. The served model "
            f"has {sorted(known)}, `source` has {sorted(tables)}."
        )
    return {known[n]: table for n, table in tables.items() if n in known}


class _ServedTable:
    """A sealed table of a file, which is mapped.

    Args:
      table: the table.

    Attributes:
      name: the name of the table.
    """

    def __init__(self, table: SavedTable) -> None:
        self.name = table.name
        parts = table.columns["keys"].parts
        size = sum(part.size for part in parts)
        octets: _Array = np.memmap(
            parts[0].file.path, np.uint8, "r", parts[0].offset, size
        )
        self._head = octets[:HEAD_BYTES].view("<i8").tolist()
        self._notes = octets[HEAD_BYTES : self._head[9]].tobytes()
        self._layout = layout = self._layout_of(DTYPES[self._head[4]][0])
        self._hash = PerfectHash(
            layout.regions,
            layout.buckets,
            layout.places,
            octets[layout.at_pilots :][
                : 2 * layout.regions * layout.buckets
            ].view("<u2"),
        )
        n = layout.num_places
        self._keys = (
            octets[layout.at_keys :][: 8 * layout.key_words * n]
            .view("<i8")
            .reshape(n, layout.key_words)
        )
        self._rows = octets[layout.at_rows :][
            : n * layout.rows.row_bytes
        ].reshape(n, layout.rows.row_bytes)

    def update(self, table: Any) -> _Array:
        """Returns the update that gives this table the rows of another."""
        if isinstance(table, Changes):
            keys, rows, gone = self._given(table)
            words = self._words(keys)
            stored = self._stored(keys, rows, rows.dtype.name)
            return self._sealed([words], [stored], self._words(gone))
        if isinstance(table, SavedTable):
            blocks, dtype = _blocks_of_saved(table), table.dtype
            is_text, dim = table.key_dtype == "string", table.width
            if table.fingerprints is not None:
                raise errors.UnsupportedError(
                    f"Table '{self.name}' of `source` is sealed: it has hashes "
                    "of its strings. Give the checkpoint or the export that it "
                    "was made of."
                )
        elif isinstance(table, HashTable):
            blocks, dtype = _blocks_of(table), table.value_dtype.name
            is_text, dim = table.key_dtype == tf.string, table.dim
        else:
            raise errors.DtypeError(
                f"Table '{self.name}' of `source` must have rows by key; got "
                f"{table!r}."
            )
        self._check(is_text, dim, dtype)
        return self._compared(blocks, dtype)

    def _compared(
        self, blocks: Iterator[tuple[_Array, _Array]], dtype: str
    ) -> _Array:
        """Returns the update with what differs in all rows of a table."""
        seen = np.zeros(len(self._keys), bool)
        # A file of pairs may have a key several times; its last row counts.
        differed = np.zeros(len(self._keys), bool)
        new_words, new_rows = [], []
        for keys, rows in blocks:
            words = self._words(keys)
            stored = self._stored(keys, rows, dtype)
            at = self._hash.places_of(np.ascontiguousarray(words[:, 0]))
            is_same = (self._keys[at] == words).all(axis=1)
            seen[at[is_same]] = True
            (kept,) = is_same.nonzero()
            at = at[kept]
            equal = (self._rows[at] == stored[kept]).all(axis=1)
            differed[at[~equal]] = True
            is_same[kept] = equal & ~differed[at]
            new_words.append(words[~is_same])
            new_rows.append(stored[~is_same])
        gone = [np.zeros((0, self._layout.key_words), np.int64)]
        for first in range(0, len(seen), _KEYS):
            words = self._keys[first : first + _KEYS]
            places = self._hash.places_of(np.ascontiguousarray(words[:, 0]))
            is_own = places == np.arange(first, first + len(words))
            gone.append(words[is_own & ~seen[first : first + _KEYS]])
        return self._sealed(new_words, new_rows, np.concatenate(gone))

    def _sealed(
        self, words: Sequence[_Array], rows: Sequence[_Array], gone: _Array
    ) -> _Array:
        """Returns an update of these keys and rows, and keys without rows."""
        layout = self._layout
        keys = np.concatenate([*words, gone])
        is_gone = np.arange(len(keys)) >= len(keys) - len(gone)
        _, last, same = np.unique(
            keys[::-1, 0], return_index=True, return_inverse=True
        )
        if (keys[::-1] != keys[::-1][last][same]).any():
            raise errors.ArgumentError(
                f"Table '{self.name}' cannot be updated: two strings have one "
                "hash. Export the model again, which draws another one."
            )
        kept = len(keys) - 1 - last
        keys, is_gone = keys[kept], is_gone[kept]
        found = PerfectHash.of(mix(np.ascontiguousarray(keys[:, 0])))
        layout = dataclasses.replace(
            layout,
            num_rows=len(keys),
            regions=found.regions,
            buckets=found.buckets,
            places=found.places,
            notes=b"",
            is_update=True,
        )
        octets = np.zeros(layout.num_bytes, np.uint8)

        def put(at: int, values: _Array) -> None:
            some = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            octets[at : at + len(some)] = some

        put(0, layout.head())
        put(layout.at_pilots, found.pilots.astype("<u2"))
        # A free place has a key that lies at another one.
        if len(keys):
            by_place = np.repeat(keys[:1], layout.num_places, axis=0)
        else:
            by_place = np.repeat(absent(found), layout.key_words, axis=1)
        at = found.places_of(np.ascontiguousarray(keys[:, 0]))
        by_place[at] = keys
        put(layout.at_keys, by_place.astype("<i8"))
        row_bytes = layout.rows.row_bytes
        stored = octets[layout.at_rows :][: layout.num_places * row_bytes]
        stored = stored.reshape(layout.num_places, row_bytes)
        changed_rows = np.concatenate([*rows, stored[:0]])
        stored[at[~is_gone]] = changed_rows[kept[~is_gone]]
        octets[layout.at_checks + at[is_gone]] = 1
        total = checksum(octets[: layout.at_sum])
        put(layout.at_sum, np.array([total], "<i8"))
        return octets

    def _layout_of(self, trained: str) -> Layout:
        """Returns the layout, for rows that were trained as this dtype."""
        num_rows, dim, number, words, regions, buckets, places = self._head[2:9]
        dtype = DTYPES[number][0]
        if self._head[15]:
            form = RowFormat("int8", trained, dim)
        elif dtype == "bfloat16":  # Such rows are at hand as float32.
            form = RowFormat("bfloat16", "float32", dim)
        elif dtype == trained or not tf.as_dtype(dtype).is_floating:
            form = RowFormat("as_trained", dtype, dim)
        else:
            form = RowFormat(dtype, trained, dim)
        secret = (self._head[13], self._head[14])
        return Layout(
            num_rows, form, words, regions, buckets, places, self._notes, secret
        )

    def _check(self, is_text: bool, dim: int, dtype: str) -> None:
        """Raises a DtypeError unless keys and rows are as in this table."""
        own = self._layout
        wanted, given = tf.as_dtype(own.rows.trained), tf.as_dtype(dtype)
        if (
            is_text != (own.key_words == 2)
            or dim != own.rows.dim
            or (
                given != wanted
                and not (given.is_floating and wanted.is_floating)
            )
        ):
            kinds = ("integers", "strings")
            raise errors.DtypeError(
                f"Table '{self.name}' of `source` must have "
                f"{kinds[own.key_words - 1]} as keys and {own.rows.dim} numbers "
                f"a row, {wanted.name}, as the served one; got "
                f"{kinds[is_text]}, {dim} and {dtype}."
            )

    def _given(self, changes: Changes) -> tuple[_Array, _Array, _Array]:
        """Returns the keys, rows and gone keys that a caller gave."""
        keys, gone = (self._keys_of(g) for g in (changes.keys, changes.gone))
        rows = np.asarray(changes.rows)
        dim = self._layout.rows.dim
        if not len(keys) and not rows.size:
            rows = np.zeros((0, dim), self._layout.rows.trained)
        if rows.ndim != 2 or len(rows) != len(keys):
            raise errors.ArgumentError(
                f"Table '{self.name}' must have a row for each key, [{len(keys)}, "
                f"{dim}]; got {list(rows.shape)}."
            )
        wanted = tf.as_dtype(self._layout.rows.trained).as_numpy_dtype
        if not np.can_cast(rows.dtype, wanted, "same_kind"):
            raise errors.DtypeError(
                f"Rows of table '{self.name}' must be "
                f"{self._layout.rows.trained}; got {rows.dtype.name}."
            )
        rows = rows.astype(wanted)
        is_text = self._layout.key_words == 2
        self._check(is_text, rows.shape[1], rows.dtype.name)
        both = [*keys.tolist(), *gone.tolist()]
        if len(set(both)) < len(both):
            raise errors.ArgumentError(
                f"Table '{self.name}': each key must be in `keys` or `gone` "
                "once."
            )
        return keys, rows, gone

    def _keys_of(self, given: Any) -> _Array:
        """Returns keys that a caller gave: int64, or object of bytes."""
        is_text = self._layout.key_words == 2
        dtype = tf.string if is_text else tf.int64
        try:
            if not len(given):
                given = tf.zeros([0], dtype)
            keys: _Array = tf.convert_to_tensor(given, dtype).numpy()
        except (TypeError, ValueError) as error:
            raise errors.DtypeError(
                f"Keys of table '{self.name}' must be {dtype.name}: {error}"
            ) from None
        return keys.reshape(-1)

    def _words(self, keys: _Array) -> _Array:
        """Returns keys as int64 [n, key_words]."""
        if self._layout.key_words == 2:
            return np.asarray(fingerprints_of(keys, self._layout.secret))
        return keys.astype(np.int64, copy=False)[:, None]

    def _stored(self, keys: _Array, rows: _Array, dtype: str) -> _Array:
        """Returns rows as the bytes [n, row_bytes] that this table has."""
        form = self._layout_of(dtype).rows
        try:
            stored, _ = form.encode(rows)
        except NotStored as missed:
            raise errors.ArgumentError(
                f"Table '{self.name}' is served as {form.name!r}, which the row "
                f"of key {keys[missed.row : missed.row + 1].tolist()[0]!r} has no form in: it has NaN, "
                "infinity or a number that is too large."
            ) from None
        octets: _Array = np.ascontiguousarray(stored).view(np.uint8)
        return octets.reshape(len(rows), form.row_bytes)


def _blocks_of_saved(table: SavedTable) -> Iterator[tuple[_Array, _Array]]:
    for chunk in table.chunks(slots=False, counters=False):
        yield chunk.keys, chunk.rows


def _blocks_of(table: HashTable) -> Iterator[tuple[_Array, _Array]]:
    """Yields the keys and rows of a table in memory, without a copy of it."""
    keys = table.keys()
    for first in range(0, int(tf.size(keys)), _KEYS):
        some = keys[first : first + _KEYS]
        rows, exists = (one.numpy() for one in table.lookup(some))
        if rows.dtype == tf.bfloat16.as_numpy_dtype:
            rows = rows.astype(np.float32)
        yield some.numpy()[exists], rows[exists]
