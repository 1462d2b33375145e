"""The rows of a layer's tables, read by hand."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.monitoring.vocabulary_rows import VocabularyRows
from tfembed.tables.hash_table import HashTable

__all__ = ["TableRows"]


class TableRows(abc.ABC):
    """Base of layers with tables, whose rows are read by id or all at once."""

    name: Any

    @abc.abstractmethod
    def _tables_by_name(self) -> Mapping[str, Any]:
        """Returns the layer's tables: HashTables, or variables."""

    def rows(
        self, ids: Any, *, table: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Reads the rows of ids as they are stored; makes no row.

        It reads in functions too, but for tables with a vocabulary.

        Args:
          ids: ids of the table's dtype, of any shape.
          table: the table's name; None: the only table of the layer.

        Returns:
          rows: ids.shape + [dim]; an id without a row has the row that it would
            begin with, or zeros beyond a vocabulary.
          exists: bool, ids.shape.

        Raises:
          tfembed.errors.DtypeError: ids of another dtype.
          tfembed.errors.MissingTableError: no table of this name, or several
            tables and no name.
          tfembed.errors.StateError: the layer has no table yet.
        """
        found: tuple[tf.Tensor, tf.Tensor] = self._chosen(table).lookup(ids)
        return found

    def to_numpy(
        self, *, table: str | None = None
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Copies all rows at one moment into arrays; eager only.

        Args:
          table: as for `rows`.

        Returns:
          keys: int64 [n], or objects [n]: `str` if all are UTF-8, else `bytes`.
          rows: [n, dim], of the table's dtype; float32 for halves.

        Raises:
          The errors of `rows`, and tfembed.errors.UnsupportedError in a
          function.
        """
        return self._chosen(table).to_numpy()

    def to_pandas(
        self, *, table: str | None = None, slots: bool = False
    ) -> Any:
        """Copies all rows at one moment into a `pandas.DataFrame`; eager only.

        Args:
          table: as for `rows`.
          slots: whether to append the columns of the optimizer's slots.

        Returns:
          A row for each key, as `HashTable.to_pandas` returns it.

        Raises:
          The errors of `to_numpy`, which pandas that is not installed raises
          too.
        """
        return self._chosen(table).to_pandas(slots=slots)

    def _chosen(self, name: str | None) -> HashTable | VocabularyRows:
        tables = self._tables_by_name()
        if name is None and len(tables) == 1:
            (name,) = tables
        if name is None or name not in tables:
            raise errors.MissingTableError(
                f"`table` must be one of {list(tables)}, the tables of layer "
                f"'{self.name}'; got {name!r}."
            )
        table = tables[name]
        return table if isinstance(table, HashTable) else VocabularyRows(table)
