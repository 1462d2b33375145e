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
    """Writes and reads tables, for all layers that look them up.

    Those have it among their layers. Keras comes once to a layer that several
    have, so the rows are in a file once.

    Args:
      tables: a trackable object that has the tables, `built` and a `name`.
    """

    def __init__(self, tables: Any) -> None:
        super().__init__(name="tables")
        self._tables = tables
        self._awaits_assets = False
        self.built = True

    def check_loaded(self) -> None:
        """Raises StateError where a part of a file was loaded, without rows."""
        if self._awaits_assets:
            raise errors.StateError(
                f"The tables of layer '{self._tables.name}' are not loaded: "
                "`load_weights` leaves the assets of a '.keras' file alone. Use "
                "`keras.saving.load_model`, or save with `save_weights`."
            )

    # Keras calls the first two hooks for every file, with arrays; the other two
    # for files that have assets too, after the first two.

    def save_own_variables(self, store: Any) -> None:
        """Writes tables and slots where no assets follow, else a mark."""
        if row_files.assets_follow(store):
            store[_ROWS_IN_ASSETS] = np.ones([1], np.int8)
        else:
            row_files.write_store(self._tables.built(), store)

    def load_own_variables(self, store: Any) -> None:
        """Reads what `save_own_variables` wrote.

        Raises:
          tfembed.errors.CheckpointError: it did not.
        """
        self._awaits_assets = _ROWS_IN_ASSETS in list(store.keys())
        if not self._awaits_assets:
            row_files.read_store(self._tables.built(), store)

    def save_assets(self, folder: str) -> None:
        """Writes tables and slots into `folder`, in slices."""
        row_files.write_assets(self._tables.built(), folder)

    def load_assets(self, folder: str | None) -> None:
        """Reads what `save_assets` wrote.

        Raises:
          tfembed.errors.CheckpointError: it did not.
        """
        row_files.read_assets(self._tables.built(), folder)
        self._awaits_assets = False
