"""`get_weights` and `set_weights` of tables: copies of rows, kept on disk.

Keras asks each weight for an array (`numpy`) and gives the array back
(`assign`): in `get_weights` and `set_weights`, and so in EarlyStopping. The
weight of a table gives a `KeptValue` in place of an array, which refers to a
checkpoint of the table in a temporary folder:

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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.checkpoint.table_saver import leave_slots_out, leave_state_out
from tfembed.dynamic_embedding.keras import row_files
from tfembed.dynamic_embedding.lookups.gradient_source import refuse_operators

__all__ = [
    "KeptRows",
    "KeptValue",
    "TableLayout",
    "WeightTables",
    "assign_rows",
]


@dataclasses.dataclass(frozen=True)
class TableLayout:
    """Width, keys and update rule, by which tables may exchange rows.

    Attributes:
      dim: the width of a row.
      keys: the number of rows, or the dtype of the keys.
      rule: the name of the update rule, which may differ; None: not trained
        yet.
    """

    dim: int
    keys: int | str
    rule: str | None


@dataclasses.dataclass(frozen=True)
class WeightTables:
    """The tables that a Keras weight stands for.

    Attributes:
      name: the name of the tables in errors and warnings.
      whole: a trackable object that has the tables, with their slots.
      rows: a trackable object that has the tables under the same names, without
        the slots of tables with a vocabulary.
      layouts: the name of each table in a checkpoint -> its layout.
      restoring: makes the context for restores, in which only rows change.
    """

    name: str
    whole: Any
    rows: Any
    layouts: Mapping[str, TableLayout]
    restoring: Callable[[], Any] = contextlib.nullcontext


class KeptRows:
    """A copy of the rows and slots of tables, on disk.

    The copy is a checkpoint in a temporary folder (in TMPDIR), which is deleted
    with this object. It is written and read in slices, so that memory holds no
    second copy of a table.

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
        """The bytes of the folder."""
        return sum(file.stat().st_size for file in self._folder.iterdir())

    def put_back(self, tables: WeightTables) -> None:
        """Replaces the content of tables by the rows of this copy.

        Slots are replaced too if the table has the same update rule or none
        yet; what the rule has besides slots goes by the optimizer's steps, and
        stays. With another rule, the rows get initial slots; a table with a
        vocabulary keeps its slots.

        Args:
          tables: the tables that were copied, or tables of the same layouts.

        Raises:
          tfembed.errors.CheckpointError: tables of other layouts. Nothing is
            changed.
        """
        self._check_fit(tables)
        has_same_rules = all(
            not own.rule or self._layouts[name].rule in (own.rule, None)
            for name, own in tables.layouts.items()
        )
        whole = tables.whole if has_same_rules else tables.rows
        alone = contextlib.nullcontext if has_same_rules else leave_slots_out
        with tables.restoring(), alone(), leave_state_out():
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


class KeptValue:
    """A weight's value that stands for tables, with a copy of their rows.

    It is no array, since rows are found by key: NumPy, TensorFlow and
    arithmetic refuse it in words. `copy`, `copy.deepcopy` and pickles of it
    have the rows too.

    Args:
      words: says which rows the value stands for, and where these are.
      shape: the weight's shape, by which Keras compares values.
      dtype: the weight's dtype.
      rows: the rows; None for tables that are not saved.

    Attributes:
      shape, dtype, rows: as given.
    """

    def __init__(
        self,
        words: str,
        shape: Sequence[int],
        dtype: Any,
        rows: KeptRows | None,
    ) -> None:
        self._words = words
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.rows = rows

    @property
    def ndim(self) -> int:
        """The number of the weight's dimensions."""
        return len(self.shape)

    def copy(self) -> KeptValue:
        """Returns a value of the same rows, which never change."""
        return KeptValue(self._words, self.shape, self.dtype, self.rows)

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> KeptValue:
        return self.copy()

    def without_rows(self) -> Any:
        """Returns the array to which the weight's own variable is set."""
        return np.zeros(self.shape, self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Raises DtypeError: the rows of a table are no array."""
        raise self._refusal()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"`{name}`: {self._refusal()}")

    def __repr__(self) -> str:
        return f"<{self._words}>"

    def _refusal(self) -> errors.DtypeError:
        return errors.DtypeError(
            "The value of this weight is no array; it stands for "
            f"{self._words}. Give it to `set_weights` as it is, or copy it by "
            "`copy.deepcopy(weights)` or `weight.copy()`. Compute with the keys "
            "and rows that `export()` returns."
        )


refuse_operators(KeptValue, KeptValue._refusal)


def assign_rows(value: Any, tables: WeightTables) -> Any:
    """Restores the rows of a weight's new value into its tables.

    If the value has no rows, the tables stay as they are, with a warning.

    Returns:
      The value without rows: a variable keeps the array that it is set to.

    Raises:
      As `KeptRows.put_back`.
    """
    is_kept = isinstance(value, KeptValue)
    if is_kept and value.rows is not None:
        value.rows.put_back(tables)
        return value.without_rows()
    warnings.warn(
        f"The weights that are being set hold no rows of {tables.name}, which "
        "stay as they are. Set what `get_weights` returned, or copies of it by "
        "`copy.deepcopy(weights)` or `weight.copy()`; or use files, as "
        "`save_weights` and `load_weights` do.",
        stacklevel=3,
    )
    return value.without_rows() if is_kept else value


def _new_folder(owner: KeptRows) -> pathlib.Path:
    """Makes a temporary folder, deleted with its owner or at process exit."""
    folder = tempfile.mkdtemp(prefix="tfembed_rows_")
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return pathlib.Path(folder)


def _of_files(layouts: Any, files: Mapping[str, bytes]) -> KeptRows:
    """Restores rows from a pickle."""
    kept = KeptRows.__new__(KeptRows)
    kept._layouts = layouts
    kept._folder = _new_folder(kept)
    for name, content in files.items():
        (kept._folder / name).write_bytes(content)
    return kept
