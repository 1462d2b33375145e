"""Writes the variables of a stock SavedModel: sealed tables and all others."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed.export.saved_model import (
    sealed_checkpoint_objects,
    sealed_tensor,
)

__all__ = ["write_variables"]

_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
# The bytes that are in memory at once.
_PIECE_BYTES = 16 << 20


def write_variables(
    source: pathlib.Path,
    target: pathlib.Path,
    sealed: Mapping[str, pathlib.Path],
    columns: Collection[str] = (),
) -> None:
    """Copies a SavedModel's variables, with sealed tables in place of tables.

    A sealed table is written in slices; a variable is read as a whole.

    Args:
      source, target: the folders of SavedModels.
      sealed: the files of the sealed tables, by the prefixes of the tables'
        tensors.
      columns: the names of tables' tensors that do not begin with a prefix and
        a slash.
    """
    folder = target / "variables"
    folder.mkdir()
    parts = _Parts(folder / "parts")
    reader = tf.train.load_checkpoint(str(source / "variables" / "variables"))
    for name in sorted(reader.get_variable_to_shape_map()):
        if name in columns or (
            name.startswith(tuple(f"{prefix}/" for prefix in sealed))
            and not name.endswith("/.ATTRIBUTES/name")
        ):
            continue
        value = reader.get_tensor(name)
        if name == _OBJECTS:
            value = sealed_checkpoint_objects(
                value,
                {
                    prefix.removesuffix("/.ATTRIBUTES"): sealed_tensor(prefix)
                    for prefix in sealed
                },
            )
        parts.write(
            name, np.asarray(value, object if name == _OBJECTS else None)
        )
    for prefix, path in sealed.items():
        parts.write_slices(
            sealed_tensor(prefix), np.memmap(path, np.uint8, mode="r")
        )
    parts.merge(folder / "variables")


class _Parts:
    """Bundles of tensors and slices, which become one.

    Args:
      folder: a folder for the bundles, which `merge` removes.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._prefixes: list[str] = []
        self._waiting: list[tuple[str, str, Any]] = []
        self._waiting_bytes = 0

    def write(self, name: str, value: Any, extent: str = "") -> None:
        """Writes a tensor, or a slice of one, at the latest in `merge`.

        Args:
          name: the name of the tensor.
          value: the array.
          extent: the shape and slice as `SaveV2` has them; "" for all.
        """
        self._waiting.append((name, extent, value))
        self._waiting_bytes += value.nbytes
        if self._waiting_bytes >= _PIECE_BYTES:
            self._write_waiting()

    def write_slices(self, name: str, value: Any) -> None:
        """Writes a vector of bytes, a slice at a time."""
        size = len(value)
        for first in range(0, size, _PIECE_BYTES):
            piece = np.asarray(value[first : first + _PIECE_BYTES])
            self.write(name, piece, f"{size} {first},{len(piece)}")

    def merge(self, prefix: pathlib.Path) -> None:
        """Makes one checkpoint of all that was written."""
        self._write_waiting()
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=self._prefixes,
            destination_prefix=str(prefix),
            delete_old_dirs=True,
        )

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        names, extents, values = zip(*self._waiting, strict=True)
        self._waiting, self._waiting_bytes = [], 0
        prefix = str(self._folder / f"part-{len(self._prefixes)}")
        with tf.device("/CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=prefix,
                tensor_names=list(names),
                shape_and_slices=list(extents),
                tensors=[tf.convert_to_tensor(value) for value in values],
            )
        self._prefixes.append(prefix)
