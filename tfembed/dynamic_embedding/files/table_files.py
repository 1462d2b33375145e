"""Saving one table to raw files, and loading it, for all that have a table."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.checkpoint import row_files
from tfembed.checkpoint.one_device import check_one_device
from tfembed.dynamic_embedding.files import folders
from tfembed.ops import files as file_ops
from tfembed.ops.private import orders_by_itself
from tfembed.tables import HashTable

__all__ = ["BUFFER_SIZE", "load", "load_pairs", "save"]

BUFFER_SIZE = 4194304  # Rows, as TFRA's.


def save(
    table: Any,
    folder: tf.Tensor,
    stems: Sequence[Any],
    *,
    append: bool,
    buffer_size: Any,
    name: str | None,
) -> Any:
    """Writes a pair of files for each shard: docs/formats/row_files.md.

    Args:
      table: what has the `handles` of a table or of one of its shards, and
        the table's `file_owner`.
      folder: string scalar.
      stems: the name of each shard's pair.
      append: whether rows go behind those that are there.
      buffer_size: rows to copy at a time.
      name: of the op.

    Returns:
      The op in a graph, None in eager mode.

    Raises:
      tf.errors.AlreadyExistsError: the files hold rows of another table.
    """
    check_one_device(table.handles, table.name)

    def write() -> tf.Operation | None:
        return file_ops.save(
            table.handles,
            folder,
            [str(stem) for stem in stems],
            buffer_size=folders.rows(buffer_size),
            append=append,
            owner=table.file_owner,
        )

    with tf.name_scope(name or "save_to_file_system"):
        try:
            saved = write()
        except tf.errors.AlreadyExistsError:
            # A table that nothing but a cycle of references keeps is no other.
            gc.collect()
            saved = write()
    return None if orders_by_itself() else saved


def load_pairs(
    table: HashTable,
    folder: tf.Tensor,
    stem: str,
    *,
    entire_folder: bool,
    buffer_size: Any,
    name: str | None,
) -> Any:
    """`load` of one pair, or with `entire_folder` of all `row_files.find_pairs`.

    In a graph these are listed when the op is made.
    """
    stems = [stem]
    if entire_folder:
        stems = row_files.find_pairs(folders.path(folder), stem)
    return load(table, folder, stems, buffer_size=buffer_size, name=name)


def load(
    table: HashTable,
    folder: tf.Tensor,
    stems: Sequence[Any],
    *,
    buffer_size: Any,
    name: str | None = None,
    select: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> Any:
    """Adds the rows of pairs of files: `tfembed.checkpoint.row_files.load`.

    Args:
      table, folder, buffer_size, name: as for `save`.
      stems: the names of any number of pairs.
      select: says which keys [n] are loaded; None: all.

    Returns:
      The op in a graph, None in eager mode.
    """
    check_one_device(table.handles, table.name)
    with tf.name_scope(name or "load_from_file_system"):
        return row_files.load(
            table,
            folder,
            [str(stem) for stem in stems],
            buffer_size=folders.rows(buffer_size),
            select=select,
        )
