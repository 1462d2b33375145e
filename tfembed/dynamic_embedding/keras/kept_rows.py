"""`get_weights` and `set_weights` of tables: their rows of then, kept on disk.

Keras asks each weight for an array (`numpy`) and gives the array back (`assign`):
in `get_weights` and `set_weights`, and so in EarlyStopping. The weight of a table
has no rows in it. Its array is a `KeptValue`, which names a checkpoint of the
table in a temporary folder:

    weights = model.get_weights()  # Writes the rows, in slices.
    model.set_weights(weights)     # Reads them.
    del weights                    # Removes the folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.checkpoint.table_saver import leave_slots_out
from tfembed.dynamic_embedding.keras import row_files

__all__ = [
    "KeptRows",
    "KeptValue",
    "TableLayout",
    "WeightTables",
    "assign_rows",
    "value_with_rows",
]


@dataclasses.dataclass(frozen=True)
class TableLayout:
    """The width, keys and rule by which a table may take the rows of another.

    Attributes:
      dim: the width of a row.
      keys: the number of rows, or the dtype of the keys.
      rule: the name of the update rule, which need not be the same; None: not
        trained yet.
    """

    dim: int
    keys: int | str
    rule: str | None


@dataclasses.dataclass(frozen=True)
class WeightTables:
    """The tables for which a weight of Keras stands.

    Attributes:
      name: the name of the tables in errors and warnings.
      whole: a trackable object that has the tables, with their slots.
      rows: a trackable object that has them in the same places, and of tables
        with a vocabulary no slots.
      layouts: the layout of each table by the name by which a checkpoint tells the
        tables apart.
      restoring: gives a context for restores, which leaves alone what is no row.
    """

    name: str
    whole: Any
    rows: Any
    layouts: Mapping[str, TableLayout]
    restoring: Callable[[], Any] = contextlib.nullcontext


class KeptRows:
    """Rows and slots of tables as they were when this was made.

    They are in a folder of `tempfile`, that is in TMPDIR, which goes with this
    object. A save and a restore stream: memory holds no second copy of a table.

    Args:
      tables: the tables whose rows are kept.
    """

    def __init__(self, tables: WeightTables) -> None:
        self._layouts = dict(tables.layouts)
        try:
            self._folder = _new_folder(self)
            row_files.write_assets(tables.whole, str(self._folder))
        except (OSError, tf.errors.OpError) as error:
            raise errors.CheckpointError(
                f"The rows of {tables.name} cannot be kept: {error}. "
                "`get_weights`, and so EarlyStopping(restore_best_weights=True), "
                "writes rows into the folder for temporary files. Set the "
                "environment variable TMPDIR to a folder with room."
            ) from error

    @property
    def bytes(self) -> int:
        """How much room the rows take in the folder."""
        return sum(file.stat().st_size for file in self._folder.iterdir())

    def put_back(self, tables: WeightTables) -> None:
        """Replaces what tables hold by the rows that were kept.

        Slots come along where a table has the same rule, or none yet. The rows of
        a table with another rule get initial slots; a table with a vocabulary
        keeps the slots that it has.

        Args:
          tables: the tables whose rows were kept, or others like them.

        Raises:
          tfembed.errors.CheckpointError: other tables. All hold what they held.
        """
        self._check_fit(tables)
        has_same_rules = all(
            not own.rule or self._layouts[name].rule in (own.rule, None)
            for name, own in tables.layouts.items()
        )
        whole = tables.whole if has_same_rules else tables.rows
        alone = contextlib.nullcontext if has_same_rules else leave_slots_out
        with tables.restoring(), alone():
            row_files.read_assets(whole, str(self._folder), is_partial=True)

    def _check_fit(self, tables: WeightTables) -> None:
        kept, own = (
            {name: (one.dim, one.keys) for name, one in layouts.items()}
            for layouts in (self._layouts, tables.layouts)
        )
        if kept != own:
            raise errors.CheckpointError(
                f"The weights that are being set hold rows of the tables (width, "
                f"keys) {kept}; {tables.name} has {own}. Set weights of a model "
                "with the same tables."
            )

    def __reduce__(self) -> Any:
        files = {
            file.name: file.read_bytes() for file in self._folder.iterdir()
        }
        return _of_files, (self._layouts, files)


class KeptValue(np.ndarray[Any, Any]):
    """A weight's array, with the rows of the tables for which the weight stands.

    Copies, slices and pickles have the rows too. Results of arithmetic do not:
    a mean of two models' weights has rows of neither.
    """

    rows: KeptRows | None = None

    def __array_finalize__(self, source: Any) -> None:
        self.rows = getattr(source, "rows", None)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        """Computes with plain arrays."""
        plain = [np.asarray(one) for one in inputs]
        return getattr(ufunc, method)(*plain, **options)

    def __reduce__(self) -> Any:
        return _with_rows, (np.array(self, subok=False), self.rows)

    def __deepcopy__(self, memo: Any) -> KeptValue:
        return self.copy()  # The rows never change.


def value_with_rows(value: Any, tables: WeightTables) -> KeptValue:
    """A weight's array, with the rows that its tables hold now."""
    return _with_rows(value, KeptRows(tables))


def assign_rows(value: Any, tables: WeightTables) -> Any:
    """Puts the rows that a weight's new value has into its tables.

    A warning tells that rows stay, where the value has none.

    Returns:
      The value without rows: a variable keeps the array that it is set to.

    Raises:
      As `KeptRows.put_back`.
    """
    rows = getattr(value, "rows", None)
    if isinstance(rows, KeptRows):
        rows.put_back(tables)
        return np.array(value)
    warnings.warn(
        f"The weights that are being set hold no rows of {tables.name}, which "
        "stay as they are: `np.array(weight)` copies no rows, and arithmetic "
        "gives none. Set what `get_weights` returned, or copies of it by "
        "`copy.deepcopy(weights)` or `weight.copy()`; or use files, as "
        "`save_weights` and `load_weights` do.",
        stacklevel=3,
    )
    return value


def _with_rows(value: Any, rows: KeptRows | None) -> KeptValue:
    kept = np.array(value).view(KeptValue)
    kept.rows = rows
    return kept


def _new_folder(owner: KeptRows) -> pathlib.Path:
    """A temporary folder that goes with its owner, and with the process."""
    folder = tempfile.mkdtemp(prefix="tfembed_rows_")
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return pathlib.Path(folder)


def _of_files(layouts: Any, files: Mapping[str, bytes]) -> KeptRows:
    """Rows that come out of a pickle."""
    kept = KeptRows.__new__(KeptRows)
    kept._layouts = layouts
    kept._folder = _new_folder(kept)
    for name, content in files.items():
        (kept._folder / name).write_bytes(content)
    return kept
