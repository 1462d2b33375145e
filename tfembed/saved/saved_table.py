"""One table of a file: its name and description, and its rows in chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tfembed import errors
from tfembed.saved.column import Column, aligned

__all__ = [
    "NO_NAME",
    "Array",
    "Chunk",
    "FoundRow",
    "Key",
    "SavedTable",
    "table_name",
]

Array: TypeAlias = "np.ndarray[Any, Any]"
Key: TypeAlias = "int | bytes"

# The maximum number of rows in a chunk of a table without keys.
_MOST_ROWS = 1 << 18


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some rows of a table.

    Attributes:
      keys: int64 [n], or object [n] of bytes where keys are strings.
      rows: [n, width]; float32 for a table of bfloat16, object of bytes for a
        table of strings. [n, 0] where the caller did not ask for rows.
      slots: the slots by name, float32 [n, width], or [n, 1] for a row-wise
        slot.
      counters: int64 [n], the eviction policy's counter of each row;
        `SavedTable.counters` gives its meaning. None without counters.
    """

    keys: Array
    rows: Array
    slots: dict[str, Array]
    counters: Array | None

    def __len__(self) -> int:
        return len(self.keys)


@dataclasses.dataclass(frozen=True)
class FoundRow:
    """The row of one key.

    Attributes:
      key: the key, an integer or bytes.
      row: the row, [width].
      slots: the slots by name, each [width] or [1].
      counter: the counter, as in `Chunk.counters`, or None.
    """

    key: Key
    row: Array
    slots: dict[str, Array]
    counter: int | None


@dataclasses.dataclass(frozen=True)
class SavedTable:
    """A table of a file. Its rows are not in memory.

    Attributes:
      name: the name that the program gave the table, for instance "users".
        `path` where the file has no name, or where several tables share it.
      path: the table's path in the file, for instance "model/layers/2/table".
      key_dtype: "int64", "int32" or "string".
      dtype: TensorFlow's name of the rows' dtype.
      width: the number of elements of a row.
      num_rows: the number of rows. In pairs that were appended to, keys may
        come twice; the last row counts.
      has_vocabulary: whether the table is a variable, with a row for each id
        from 0.
      rule: the update rule of the slots; None where the file does not have it.
      slot_widths: the width of each slot by name, `width` or 1.
      slot_initial_values: the initial values by name, where the file has them.
      seed: the seed of the initial rows; None where the file does not have it.
      counters: the meaning of the counters, "steps_ago", "seconds_since_1970"
        or "writes"; "" without counters.
      num_waiting: the number of keys that wait for admission.
      policies: by kind, "admission", "eviction" or "expiry", the policy in
        words.
      num_bytes: the bytes of "keys", "rows", "slots", "counters" and
        "waiting".
      shard_sizes: the number of rows of each shard, where the file has shards.
      columns: the tensors by name: "keys", "rows", "counters", "slots/<name>".
      waiting: the columns "keys" and "seen" of the keys that wait.
      fingerprints: turns strings, object [n] of bytes, into the texts that
        stand for them in `chunks`; None where the file has the keys.
    """

    name: str
    key_dtype: str
    dtype: str
    width: int
    num_rows: int
    columns: Mapping[str, Column] = dataclasses.field(repr=False)
    has_vocabulary: bool = False
    rule: str | None = None
    slot_widths: Mapping[str, int] = dataclasses.field(default_factory=dict)
    slot_initial_values: Mapping[str, float] = dataclasses.field(
        default_factory=dict
    )
    seed: int | None = None
    counters: str = ""
    num_waiting: int = 0
    policies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    num_bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    shard_sizes: tuple[int, ...] = ()
    waiting: Mapping[str, Column] = dataclasses.field(
        default_factory=dict, repr=False
    )
    path: str = ""
    fingerprints: Callable[[Array], Array] | None = None

    def __post_init__(self) -> None:
        if not self.path:
            object.__setattr__(self, "path", self.name)

    @property
    def total_bytes(self) -> int:
        """The number of bytes of all kinds in the file."""
        return sum(self.num_bytes.values())

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of the slots, in the rule's order."""
        return tuple(self.slot_widths)

    def chunks(
        self, *, rows: bool = True, slots: bool = True, counters: bool = True
    ) -> Iterator[Chunk]:
        """Yields all rows, each once, some megabytes at a time.

        Columns that are not asked for are not read. Bytes are compared with
        their checksums during reading: damage may show up to the last chunk.

        Args:
          rows, slots, counters: which columns to read beside the keys.

        Raises:
          tfembed.errors.CheckpointError: the file is damaged.
        """
        wanted = ["rows"] if rows else []
        wanted += [f"slots/{slot}" for slot in self.slot_names if slots]
        wanted += ["counters"] if counters and self.counters else []
        has_keys = "keys" in self.columns
        names = [*(["keys"] if has_keys else []), *wanted]
        if not has_keys and not wanted:
            for first in range(0, self.num_rows, _MOST_ROWS):
                n = min(_MOST_ROWS, self.num_rows - first)
                yield self._chunk(first, n, {})
            return
        first = 0
        for n, arrays in aligned({name: self.columns[name] for name in names}):
            yield self._chunk(first, n, arrays)
            first += n

    def find(self, keys: Sequence[Key]) -> list[FoundRow | None]:
        """Returns the rows of some keys; None for a key that is not there.

        Reads all keys, and those parts of the other columns that hold the
        rows.

        Raises:
          tfembed.errors.DtypeError: a key has another type than the table's.
          tfembed.errors.CheckpointError: the file is damaged.
        """
        places = self.places(keys)
        found = np.asarray([p for p in places if p is not None], np.int64)
        taken = {
            name: column.take(found)
            for name, column in self.columns.items()
            if name != "keys" and column.shape[1:] != (0,)
        }
        result: list[FoundRow | None] = []
        n = 0
        for key, place in zip(keys, places, strict=True):
            if place is None:
                result.append(None)
                continue
            result.append(
                FoundRow(
                    key,
                    taken["rows"][n] if "rows" in taken else np.zeros(0),
                    {s: taken[f"slots/{s}"][n] for s in self.slot_names},
                    int(taken["counters"][n]) if self.counters else None,
                )
            )
            n += 1
        return result

    def places(self, keys: Sequence[Key]) -> list[int | None]:
        """Returns the row numbers of some keys; None: no such key.

        Raises:
          tfembed.errors.DtypeError: a key has another type than the table's.
          tfembed.errors.CheckpointError: the file is damaged.
        """
        self.check_keys(keys)
        if self.fingerprints is not None:
            texts = np.empty(len(keys), object)
            texts[:] = keys
            keys = self.fingerprints(texts).tolist()
        if "keys" not in self.columns:
            return [
                int(key) if 0 <= int(key) < self.num_rows else None
                for key in keys
            ]
        places: dict[Key, int] = {}
        wanted = np.asarray([key for key in keys if isinstance(key, int)])
        wanted_texts = {key for key in keys if isinstance(key, bytes)}
        first = 0
        for block in self.columns["keys"].stream():
            if wanted_texts:
                places |= {
                    key: first + i
                    for i, key in enumerate(block)
                    if key in wanted_texts
                }
            elif len(wanted) <= 8:
                for key in wanted.tolist():
                    if len(at := np.flatnonzero(block == key)):
                        places[key] = first + int(at[-1])
            else:
                for at in np.flatnonzero(np.isin(block, wanted)).tolist():
                    places[int(block[at])] = first + at
            first += len(block)
        return [places.get(key) for key in keys]

    def check(self) -> None:
        """Compares all bytes of the table with their checksums.

        Raises:
          tfembed.errors.CheckpointError: some bytes do not match.
        """
        for column in (*self.columns.values(), *self.waiting.values()):
            column.check()

    def check_keys(self, keys: Sequence[Key]) -> None:
        """Raises an error if a key has another type than the table's.

        Raises:
          tfembed.errors.DtypeError: a key has another type.
        """
        for key in keys:
            self._check_key(key)

    def _check_key(self, key: Key) -> None:
        is_text = isinstance(key, bytes)
        if is_text != (self.key_dtype == "string"):
            kind = "strings, as bytes" if not is_text else "integers"
            raise errors.DtypeError(
                f"Keys of table '{self.name}' are {kind}; got {key!r}."
            )
        most = 31 if self.key_dtype == "int32" else 63
        if isinstance(key, int) and not -(1 << most) <= key < 1 << most:
            raise errors.DtypeError(
                f"Keys of table '{self.name}' are {self.key_dtype}; got {key}."
            )

    def _chunk(self, first: int, n: int, arrays: dict[str, Array]) -> Chunk:
        keys = arrays.get("keys")
        if keys is None:
            keys = np.arange(first, first + n)
        elif keys.dtype == np.int32:
            keys = keys.astype(np.int64)
        rows = arrays.get("rows")
        return Chunk(
            keys,
            np.zeros((n, 0), np.float32) if rows is None else rows,
            {
                slot: arrays[f"slots/{slot}"]
                for slot in self.slot_names
                if f"slots/{slot}" in arrays
            },
            arrays.get("counters"),
        )


# The name of a `dynamic_embedding.Variable` that the program did not name.
NO_NAME = "DynamicEmbedding_Variable"

# The suffix that layers of `dynamic_embedding`, like TFRA's, give their
# tables.
_OF_LAYER = "-parameter"


def table_name(name: str) -> str:
    """Returns the name by which people know a table.

    Args:
      name: the table's name; the layer "users" names its table
        "users-parameter".
    """
    return name.removesuffix(_OF_LAYER) or name
