"""The tables of a layer in the files that Keras writes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tfembed import errors
from tfembed.dynamic_embedding.keras import row_files

__all__ = ["TableFiles"]

_ROWS_IN_ASSETS = "rows_in_assets"


class TableFiles(keras.layers.Layer):
    """Writes and reads tables for all layers that share them.

    It is a sublayer of each of these layers. Keras saves a shared sublayer
    once, so a file has the rows once.

    Args:
      tables: a trackable object that has the tables, `built` and a `name`.
    """

    def __init__(self, tables: Any) -> None:
        super().__init__(name="tables")
        self._tables = tables
        self._awaits_assets = False
        self.built = True

    def check_loaded(self) -> None:
        """Raises StateError if a file was loaded in part, without rows."""
        if self._awaits_assets:
            raise errors.StateError(
                f"The tables of layer '{self._tables.name}' are not loaded: "
                "`load_weights` leaves the assets of a '.keras' file alone. Use "
                "`keras.saving.load_model`, or save with `save_weights`."
            )

    # Keras calls the first two hooks for all files; they write and read arrays.
    # For files that have assets, it calls the other two after them.

    def save_own_variables(self, store: Any) -> None:
        """Writes tables and slots, or only a mark if assets follow."""
        if row_files.assets_follow(store):
            store[_ROWS_IN_ASSETS] = np.ones([1], np.int8)
        else:
            row_files.write_store(self._tables.built(), store)

    def load_own_variables(self, store: Any) -> None:
        """Reads the tables that `save_own_variables` wrote.

        Raises:
          tfembed.errors.CheckpointError: the file has no tables.
        """
        self._awaits_assets = _ROWS_IN_ASSETS in list(store.keys())
        if not self._awaits_assets:
            row_files.read_store(self._tables.built(), store)

    def save_assets(self, folder: str) -> None:
        """Writes tables and slots into `folder`, in slices."""
        row_files.write_assets(self._tables.built(), folder)

    def load_assets(self, folder: str | None) -> None:
        """Reads the tables that `save_assets` wrote.

        Raises:
          tfembed.errors.CheckpointError: the folder has no tables.
        """
        row_files.read_assets(self._tables.built(), folder)
        self._awaits_assets = False
