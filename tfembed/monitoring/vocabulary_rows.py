"""The rows of a table with a vocabulary, read and written by row number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.embedding.tpu_embedding import owner_of
from tfembed.monitoring.table_health import gather_rows
from tfembed.saved.saved_table import Chunk
from tfembed.tables.arguments import key_tensor
from tfembed.tables.key_access import KeyAccess

__all__ = ["VocabularyRows", "has_vocabulary"]

_ROWS_AT_ONCE = 1 << 16


def has_vocabulary(table: Any) -> bool:
    """Whether `table` is a float32 variable [vocabulary, dim]."""
    shape = getattr(table, "shape", None)
    return (
        hasattr(table, "scatter_update")
        and isinstance(shape, tf.TensorShape)
        and shape.rank == 2
        and shape.is_fully_defined()
        and table.dtype == tf.float32
    )


class VocabularyRows(KeyAccess):
    """A variable of rows 0, 1, ..., with the methods of a `HashTable`.

    Its slots belong to the TPUEmbedding whose `embedding_tables` returned the
    variable. Eager mode only.

    Args:
      variable: a variable for which `has_vocabulary` is true.

    Raises:
      tfembed.errors.UnsupportedError: the call is in a function or a graph.

    Attributes:
      name, dim, key_dtype, value_dtype, max_size, optimizer, slot_names,
        slot_widths: as for a HashTable.
      num_rows: the vocabulary size.
    """

    key_dtype = tf.int64
    value_dtype = tf.float32
    max_size = None

    def __init__(self, variable: Any) -> None:
        self.name = str(variable.name).partition(":")[0]
        self._require_eager("rows", "a lookup of the embedding")
        self._variable = variable
        self._owner = owner_of(variable)
        self._slots: dict[str, Any] = {}
        self.optimizer: Any = None
        self.num_rows, self.dim = (int(n) for n in variable.shape)
        tables = {} if self._owner is None else self._owner.made_tables()
        for name, (table, optimizer, _) in tables.items():
            if table.parameters is variable:
                self.name, self.optimizer = name, optimizer
                self._slots = dict(table.slots)
        self.slot_names = tuple(self._slots)
        self.slot_widths = tuple(
            int(slot.shape[1]) for slot in self._slots.values()
        )

    def check_ids(self, ids: tf.Tensor, what: str) -> None:
        """Raises ArgumentError if `ids` [n] of `what` contain an unknown id."""
        numbers = ids.numpy()
        outside = numbers[(numbers < 0) | (numbers >= self.num_rows)]
        if outside.size:
            raise errors.ArgumentError(
                f"The keys of table '{self.name}' are the numbers of its rows, 0 "
                f"to {self.num_rows - 1}; got {outside[0]} of {what}. Choose "
                "rows, or convert keys to row numbers by `convert_keys`."
            )

    @property
    def _by_key(self) -> Any:
        return self

    def size(self) -> int:
        """Returns the vocabulary size."""
        return self.num_rows

    def keys(self) -> tf.Tensor:
        """Returns all ids, int64 [vocabulary]."""
        return tf.range(self.num_rows, dtype=tf.int64)

    def contains(self, ids: Any) -> tf.Tensor:
        """Says which of `ids`, of any shape, are in the vocabulary."""
        ids = key_tensor(ids, self.key_dtype, self.name)
        return (ids >= 0) & (ids < self.num_rows)

    def lookup(self, ids: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows of `ids` of any shape, and which of them exist.

        The row of an id beyond the vocabulary is zeros.
        """
        ids = key_tensor(ids, self.key_dtype, self.name)
        exists = self.contains(ids)
        numbers, is_row = np.asarray(ids), np.asarray(exists)
        rows = np.zeros([*numbers.shape, self.dim], np.float32)
        rows[is_row] = gather_rows(self._variable, numbers[is_row])
        return tf.constant(rows), exists

    def export_columns(self) -> list[tf.Tensor]:
        """Returns all ids [n], values [n, dim], and the rows of each slot."""
        parts = [self._variable, *self._slots.values()]
        return [self.keys(), *(part.read_value() for part in parts)]

    def upsert(self, ids: tf.Tensor, rows: tf.Tensor) -> None:
        """Writes the rows of `ids`; the last row of a repeated id wins."""
        self.write_trained(ids, rows)

    def write_trained(self, ids: Any, rows: Any) -> None:
        """Writes the values, or values and all slots, of `ids`.

        Args:
          ids: int64 [n].
          rows: float32 [n, dim], or [n, dim + slots].
        """
        backwards, last = np.unique(np.asarray(ids)[::-1], return_index=True)
        rows = tf.gather(rows, len(ids) - 1 - last)
        has_slots = rows.shape[1] > self.dim
        widths = [self.dim, *(self.slot_widths if has_slots else ())]
        parts = [self._variable, *(self._slots.values() if has_slots else ())]
        for part, values in zip(parts, tf.split(rows, widths, 1), strict=True):
            part.scatter_update(tf.IndexedSlices(values, backwards))

    def load(self) -> None:
        """Makes the engine read the written rows."""
        if self._owner is not None:
            self._owner._load_variables()

    def chunks(self) -> Iterator[Chunk]:
        """Yields all rows and slots in chunks."""
        for first in range(0, self.num_rows, _ROWS_AT_ONCE):
            ids = np.arange(first, min(first + _ROWS_AT_ONCE, self.num_rows))
            yield Chunk(
                ids,
                gather_rows(self._variable, ids),
                {
                    name: gather_rows(slot, ids)
                    for name, slot in self._slots.items()
                },
                None,
            )
