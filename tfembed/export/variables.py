"""Writes the variables of a stock SavedModel: sealed tables and all others."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed.export.bundle_index import index_of_bytes
from tfembed.export.saved_model import sealed_checkpoint_objects
from tfembed.export.sealed_table import SLICE_BYTES, SealedFile

__all__ = ["Variables"]

_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
# The bytes of variables that are in memory at once, or one variable.
_PIECE_BYTES = 16 << 20


class Variables:
    """The checkpoint of a SavedModel, made of parts.

    Args:
      folder: the folder of the SavedModel.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._prefix = folder / "variables" / "variables"
        self._parts = folder / "variables" / "parts"
        self._parts.mkdir(parents=True)
        self._prefixes: list[str] = []
        self._waiting: dict[str, Any] = {}
        self._waiting_bytes = 0

    def next_file(self) -> pathlib.Path:
        """Returns the file for the next sealed table."""
        return self._parts / f"{len(self._prefixes)}.data-00000-of-00001"

    def add_sealed(self, tensor: str, sealed: SealedFile) -> None:
        """Adds what was written into `next_file`, under this name."""
        part = self._parts / str(len(self._prefixes))
        size = sealed.layout.num_bytes
        index = index_of_bytes(tensor, size, SLICE_BYTES, sealed.checksums)
        part.with_suffix(".index").write_bytes(index)
        self._prefixes.append(str(part))

    def copy(
        self,
        source: pathlib.Path,
        tensors: Mapping[str, str],
        columns: Collection[str],
    ) -> None:
        """Adds all variables of a SavedModel that belong to no table.

        Args:
          source: the folder.
          tensors: the names of the sealed tables' tensors by the prefixes of
            the tables' own ones.
          columns: the names of tables' tensors that do not begin with a prefix
            and a slash.
        """
        reader = tf.train.load_checkpoint(
            str(source / "variables" / "variables")
        )
        of_tables = tuple(f"{prefix}/" for prefix in tensors)
        for name in sorted(reader.get_variable_to_shape_map()):
            if name in columns or (
                name.startswith(of_tables)
                and not name.endswith("/.ATTRIBUTES/name")
            ):
                continue
            value = reader.get_tensor(name)
            if name == _OBJECTS:
                value = sealed_checkpoint_objects(
                    value,
                    {
                        prefix.removesuffix("/.ATTRIBUTES"): tensor
                        for prefix, tensor in tensors.items()
                    },
                )
            self._waiting[name] = value
            self._waiting_bytes += np.asarray(value).nbytes
            if self._waiting_bytes >= _PIECE_BYTES:
                self._write_waiting()
        self._write_waiting()

    def merge(self) -> None:
        """Makes one checkpoint of all parts; their data files are renamed."""
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=self._prefixes,
            destination_prefix=str(self._prefix),
            delete_old_dirs=True,
        )

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        part = str(self._parts / str(len(self._prefixes)))
        with tf.device("/CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=part,
                tensor_names=list(self._waiting),
                shape_and_slices=[""] * len(self._waiting),
                tensors=list(map(tf.constant, self._waiting.values())),
            )
        self._prefixes.append(part)
        self._waiting, self._waiting_bytes = {}, 0
