"""Starts tables with rows of other sources: `tfembed.warm_start`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import checks, errors
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.monitoring.vocabulary_rows import VocabularyRows, has_vocabulary
from tfembed.saved.saved_table import Chunk
from tfembed.tables import HashTable, arguments
from tfembed.transfer.row_source import RowSource, of_layer, row_source

__all__ = ["SLOT_MEANINGS", "WarmStart", "warm_start"]

Array = np.ndarray[Any, Any]

# By rule and slot, the meaning of slots that several update rules share: one
# such slot may start with the values of another. Other slots are specific to a
# rule.
SLOT_MEANINGS: Mapping[tuple[str, str], str] = {
    # a += g^2
    ("adagrad", "accumulators"): "sum of squares",
    ("ftrl", "accumulators"): "sum of squares",
    ("proximal_adagrad", "accumulators"): "sum of squares",
    # v = b v + (1 - b) g^2, or Yogi's estimate of the same
    ("adadelta", "accumulators"): "mean of squares",
    ("adam", "velocities"): "mean of squares",
    ("centered_rms_prop", "ms"): "mean of squares",
    ("rms_prop", "ms"): "mean of squares",
    ("yogi", "v"): "mean of squares",
    # m = b m + (1 - b) g
    ("adam", "momenta"): "mean of gradients",
    ("centered_rms_prop", "mg"): "mean of gradients",
    ("lion", "momenta"): "mean of gradients",
    ("yogi", "m"): "mean of gradients",
    # b u + lr g / sqrt(mean of squares)
    ("centered_rms_prop", "mom"): "momentum of scaled steps",
    ("rms_prop", "mom"): "momentum of scaled steps",
}


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """The report of a warm start.

    Attributes:
      rows: the number of rows written.
      padded_columns: the number of columns per row that the source lacks.
      slots_kept: by slot of the table, the source's slot that it started with.
      slots_new: the slots of the table that were initialized.
      slots_dropped: the slots of the source that the table does not use.
      left_out: the names of rows of the source that have no key.
      repeated: the number of rows that a later row of the same key replaced.
    """

    rows: int
    padded_columns: int
    slots_kept: dict[str, str]
    slots_new: tuple[str, ...]
    slots_dropped: tuple[str, ...]
    left_out: tuple[str, ...]
    repeated: int = 0


def warm_start(
    table: Any,
    source: Any,
    *,
    name: str | None = None,
    key: str = "key",
    pad: Any = None,
    convert_keys: Callable[[Array], Any] | None = None,
    slots: bool = True,
) -> WarmStart:
    """Writes the rows of another table, file or program into a table.

    The width, the update rule and the dtype of keys may differ from the
    source's. Rows of other keys are unchanged; counters of policies start
    again. Eager mode only.

        tfembed.warm_start(
            embedding.embedding_tables["users"], "run/ckpt-9", name="users",
            pad="initial",
        )

    Args:
      table: a HashTable or `dynamic_embedding.Variable`; an `Embedding` layer
        of tfembed that has seen the dtype of its ids; or the variable of a
        table with a vocabulary, from `embedding_tables`, whose keys are 0, 1,
        ...
      source: a path of a checkpoint (of tfembed, TFRA, or
        `tf.compat.v1.train.Saver`), a SavedModel, a Keras file, raw TFRA
        files, or a '.parquet', '.npz' or '.npy' file; (keys [n], rows [n,
        width]); a dict of rows by key; a `pandas.DataFrame`; another table, or
        a layer with one; a Keras Embedding, whose keys are 0, 1, ...; or
        (StringLookup or IntegerLookup, Embedding).
      name: the name of the table, if a file has several.
      key: the column of keys, for Parquet files and data frames.
      pad: the value of the columns that the source lacks, if the table is
        wider: a number, or "initial": the table's present value, which for a
        new key is its initial row.
      convert_keys: (keys of the source) -> the same number of keys of the
        table: int64 [n], or object [n] of bytes for strings. None: integers
        become decimal strings, and decimal strings become integers. If
        several rows get the same key, the last one wins.
      slots: whether to keep slots with the same meaning under both update
        rules (`SLOT_MEANINGS`); the columns of a wider row, and other slots,
        start as in a new row. The table must have its optimizer: for a
        Variable, call `DynamicEmbeddingOptimizer.attach` first.

    Returns:
      A report of the rows and slots written.

    Raises:
      tfembed.errors.ArgumentError: the source has another type, wider rows
        than the table, or more rows than `max_size`; `pad` is missing; or a
        key is not in the table's vocabulary. Nothing is changed.
      tfembed.errors.DtypeError: keys cannot be converted to keys of the table,
        or rows are not numbers of its dtype. Nothing is changed.
      tfembed.errors.StateError: a layer has no rows, words or table yet.
      tfembed.errors.CheckpointError: a file cannot be read. Damage within the
        rows is found before the first row is written.
      tfembed.errors.UnsupportedError: the table has another type, eager mode
        is off, or a package is missing.
    """
    own = _table(table)
    found = row_source(source, name, key)
    begin = _Beginning(own, found, pad, slots, convert_keys)
    begin.check()
    return begin.write()


def _table(table: Any) -> HashTable | VocabularyRows:
    table = of_layer(table)
    if isinstance(table, Variable):
        table = table.table
    if not tf.executing_eagerly():
        raise errors.UnsupportedError(
            f"A warm start of table '{getattr(table, 'name', table)}' runs in "
            "eager mode, outside of tf.function. In graphs use "
            "dynamic_embedding.warm_start."
        )
    if isinstance(table, HashTable):
        return table
    if has_vocabulary(table):
        return VocabularyRows(table)
    if hasattr(table, "embedding_tables") or hasattr(table, "embedding"):
        raise errors.UnsupportedError(
            f"`table` must be one table; got {type(table).__name__}, which may "
            "have several. Give one of its `embedding_tables`, by name (those of "
            "a layer: `layer.embedding.embedding_tables`), once they are made."
        )
    raise errors.UnsupportedError(
        "`table` must be a HashTable, a dynamic_embedding.Variable with rows of "
        "numbers, or a variable [vocabulary, dim] of `embedding_tables`; got "
        f"{type(table).__name__}. Give one of these, or use the object's own "
        "method: `set_weights` of a Keras layer."
    )


class _Beginning:
    """One warm start: a first pass checks everything, a second one writes.

    Args:
      table: the table to write to.
      source: the rows to write.
      pad, slots, convert: arguments of `warm_start`.
    """

    def __init__(
        self,
        table: HashTable | VocabularyRows,
        source: RowSource,
        pad: Any,
        slots: bool,
        convert: Callable[[Array], Any] | None,
    ) -> None:
        self._table = table
        self._source = source
        self._pad = pad
        self._convert = convert
        self._repeated = 0
        self._kept: dict[str, str] = {}
        optimizer: Any = table.optimizer
        if slots and optimizer is not None:
            self._kept = _same_slots(
                optimizer.rule_text().split()[0],
                dict(zip(table.slot_names, table.slot_widths, strict=True)),
                source.rule,
                source.slot_widths,
            )

    def check(self) -> None:
        """Raises an error if a row could not be written."""
        table, source = self._table, self._source
        if source.width > table.dim:
            raise errors.ArgumentError(
                f"The rows of {source.what} have width {source.width}, and table "
                f"'{table.name}' has {table.dim}: nothing says which columns to "
                "leave out. Choose them in NumPy, and give (keys, rows)."
            )
        self._check_pad()
        most = table.max_size
        if most is not None and source.num_rows > most:
            raise errors.ArgumentError(
                f"{source.what} has {source.num_rows} rows, and table "
                f"'{table.name}' holds max_size={most}. Choose rows, or make it "
                "larger."
            )
        prints = []
        for chunk in source.chunks():
            keys = self._keys(chunk)
            if isinstance(table, VocabularyRows):
                table.check_ids(keys, source.what)
            if self._may_repeat:
                prints.append(_prints(keys.numpy()))
            arguments.value_tensor(
                self._as_own(chunk.rows[:1]), table.value_dtype, table.name
            )
        if prints:
            every = np.concatenate(prints)
            self._repeated = every.size - np.unique(every).size

    @property
    def _may_repeat(self) -> bool:
        """Whether two rows may go to one key; a table's keys are distinct."""
        becomes_number = (
            self._source.key_dtype == "string"
            and self._table.key_dtype != tf.string
        )
        return (
            self._source.may_repeat
            or self._convert is not None
            or becomes_number  # "7" and "07".
        )

    def _check_pad(self) -> None:
        table, source = self._table, self._source
        if self._pad == "initial" or (
            self._pad is None and source.width == table.dim
        ):
            return
        if checks.number(self._pad) is None:
            raise errors.ArgumentError(
                f"`pad` must be 'initial' or a number, the value of the last "
                f"{table.dim - source.width} columns of table '{table.name}': "
                f"its width is {table.dim}, and that of {source.what} is "
                f"{source.width}; got {self._pad!r}."
            )

    def write(self) -> WarmStart:
        """Writes all rows."""
        written = 0
        for chunk in self._source.chunks():
            self._write(chunk)
            written += len(chunk)
        table = self._table
        if isinstance(table, VocabularyRows):
            table.load()
        return WarmStart(
            rows=written,
            padded_columns=table.dim - self._source.width,
            slots_kept=self._kept,
            slots_new=tuple(s for s in table.slot_names if s not in self._kept),
            slots_dropped=tuple(
                s
                for s in self._source.slot_widths
                if s not in self._kept.values()
            ),
            left_out=self._source.left_out,
            repeated=self._repeated,
        )

    def _write(self, chunk: Chunk) -> None:
        table = self._table
        keys = self._keys(chunk)
        rows = self._padded(keys, self._as_own(chunk.rows))
        if table.optimizer is None or not table.slot_names:
            table.upsert(keys, rows)
            return
        parts = [tf.cast(rows, tf.float32)]
        starts = table.optimizer.slot_initial_values
        for slot, width in zip(
            table.slot_names, table.slot_widths, strict=True
        ):
            column = np.full([len(chunk), width], starts[slot], np.float32)
            if slot in self._kept:
                given = chunk.slots[self._kept[slot]]
                column[:, : given.shape[1]] = given
            parts.append(tf.constant(column))
        table.write_trained(keys, tf.concat(parts, 1))

    def _keys(self, chunk: Chunk) -> tf.Tensor:
        """Converts the keys of a chunk to keys of the table, in their order."""
        table, keys = self._table, chunk.keys
        if self._convert is not None:
            keys = np.asarray(self._convert(keys))
            if keys.shape != chunk.keys.shape:
                raise errors.ArgumentError(
                    f"`convert_keys` must give a key for each of "
                    f"{list(chunk.keys.shape)}; got shape {list(keys.shape)}."
                )
        elif table.key_dtype == tf.string and keys.dtype != object:
            keys = np.array([str(one).encode() for one in keys], object)
        elif table.key_dtype != tf.string and keys.dtype == object:
            keys = self._numbers(keys)
        return arguments.key_tensor(keys, table.key_dtype, table.name)

    def _numbers(self, keys: Array) -> Array:
        for one in keys:
            if not re.fullmatch(rb"-?\d{1,19}", one):
                raise errors.DtypeError(
                    f"The keys of table '{self._table.name}' are integers, and "
                    f"key {one!r} of {self._source.what} is not a decimal "
                    "number. Convert texts to integers by `convert_keys`."
                )
        return np.array([int(one) for one in keys])

    def _as_own(self, rows: Array) -> Array:
        """Casts floats to the table's dtype; returns other dtypes unchanged."""
        dtype = self._table.value_dtype
        if dtype.is_floating and rows.dtype.kind == "f":
            return rows.astype(dtype.as_numpy_dtype)
        return rows

    def _padded(self, keys: tf.Tensor, rows: Array) -> tf.Tensor:
        table = self._table
        values = arguments.value_tensor(rows, table.value_dtype, table.name)
        missing = table.dim - rows.shape[1]
        if not missing:
            return values
        if self._pad == "initial":
            rest = table.lookup(keys)[0][:, rows.shape[1] :]
        else:
            rest = tf.cast(
                tf.fill([len(rows), missing], self._pad), table.value_dtype
            )
        return tf.concat([values, rest], 1)


def _prints(keys: Array) -> Array:
    """Returns an int64 for each key, equal for equal keys."""
    if keys.dtype != object:
        return keys
    return np.fromiter(map(hash, keys), np.int64, len(keys))


def _same_slots(
    rule: str,
    slot_widths: Mapping[str, int],
    other: str | None,
    other_widths: Mapping[str, int],
) -> dict[str, str]:
    """Returns the slots of a rule that can start with another rule's slots.

    Args:
      rule: the name of the rule in the core, for instance "adagrad".
      slot_widths: the widths of its slots; 1 for one number per row.
      other: the name of the other rule; None: unknown.
      other_widths: the widths of the other rule's slots.

    Returns:
      By slot of `rule`, the slot of `other`. A slot with one number per row
      only pairs with another such slot.
    """
    if other is None:
        return {}
    found = {}
    for slot, width in slot_widths.items():
        meaning = SLOT_MEANINGS.get((rule, slot))
        for given, given_width in other_widths.items():
            is_same = (
                slot == given
                if rule == other
                else meaning is not None
                and SLOT_MEANINGS.get((other, given)) == meaning
            )
            if is_same and (width == 1) == (given_width == 1):
                found[slot] = given
    return found
