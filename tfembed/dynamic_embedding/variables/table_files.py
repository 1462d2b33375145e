"""Saves and loads of one table in raw files, for all objects with a table."""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import checks, errors
from tfembed.checkpoint import row_files
from tfembed.cluster.owners import by_device
from tfembed.ops import files as file_ops
from tfembed.ops.private import orders_by_itself
from tfembed.tables import HashTable

__all__ = [
    "BUFFER_SIZE",
    "DynamicEmbeddingSaver",
    "FileSystemSaver",
    "FileSystemSaverConfig",
    "folder",
    "load",
    "load_pairs",
    "path",
    "rows",
    "save",
]


def folder(dirpath: Any, dirpath_env: str | None) -> tf.Tensor:
    """Returns the folder: the environment variable's, if set, else `dirpath`.

    Raises:
      tfembed.errors.ArgumentError: an empty path.
    """
    override = os.environ.get(dirpath_env) if dirpath_env else None
    if not override and tf.is_tensor(dirpath):
        return dirpath
    name = override or os.fspath(dirpath)
    if not name:
        raise errors.ArgumentError(
            f"`dirpath` must be a folder's path, as in '.'; got {dirpath!r}."
        )
    return tf.constant(name)


def path(folder: tf.Tensor) -> str:
    """Returns the folder's path, to look for files now.

    Raises:
      tfembed.errors.ArgumentError: the path is known only when a graph runs.
    """
    value = tf.get_static_value(folder)
    if value is None:
        raise errors.ArgumentError(
            "`dirpath` must be known when files are looked for; got a tensor "
            "of a graph. Give a path, or name the files."
        )
    return str(
        tf.compat.as_str(value.item() if hasattr(value, "item") else value)
    )


def rows(buffer_size: Any) -> int:
    """Returns `buffer_size`, the rows that are copied at a time, checked.

    Raises:
      tfembed.errors.ArgumentError: below 1, or not an integer.
    """
    return checks.integer(buffer_size, "buffer_size", least=1)


BUFFER_SIZE = 4194304  # Rows, as in TFRA.


def save(
    table: Any,
    folder: tf.Tensor,
    stems: Sequence[Any],
    *,
    append: bool,
    buffer_size: Any,
    name: str | None,
    deal_by_low_bits: bool = False,
) -> Any:
    """Writes a pair of files for each shard: docs/formats/row_files.md.

    Args:
      table: an object with the `handles` of a table or of one of its shards,
        and the table's `file_owner`.
      folder: string scalar.
      stems: the name of each shard's pair.
      append: whether to append to the rows in the files.
      buffer_size: rows to copy at a time.
      name: the name of the op.
      deal_by_low_bits: as for `tfembed.ops.files.save`.

    Returns:
      The op in a graph, None in eager mode.

    Raises:
      tf.errors.AlreadyExistsError: the files hold rows of another table.
    """
    _check_one_device(table)

    def write() -> tf.Operation | None:
        return file_ops.save(
            table.handles,
            folder,
            [str(stem) for stem in stems],
            buffer_size=rows(buffer_size),
            append=append,
            owner=table.file_owner,
            deal_by_low_bits=deal_by_low_bits,
        )

    with tf.name_scope(name or "save_to_file_system"):
        try:
            saved = write()
        except tf.errors.AlreadyExistsError:
            # Deletes tables that only reference cycles keep, which own files
            # too.
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
    """Loads one pair, or with `entire_folder` all of `row_files.find_pairs`.

    In a graph the pairs are listed when the op is made.
    """
    stems = [stem]
    if entire_folder:
        stems = row_files.find_pairs(path(folder), stem)
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
      select: a function that says which keys [n] to load; None: all.

    Returns:
      The op in a graph, None in eager mode.
    """
    _check_one_device(table)
    with tf.name_scope(name or "load_from_file_system"):
        return row_files.load(
            table,
            folder,
            [str(stem) for stem in stems],
            buffer_size=rows(buffer_size),
            select=select,
        )


def _check_one_device(table: Any) -> None:
    """Raises an error if one op cannot write all files of a table at once.

    Raises:
      tfembed.errors.UnsupportedError: the shards are on several devices.
    """
    if len(by_device(table.handles)) > 1:
        devices = sorted({handle.device for handle in table.handles})
        raise errors.UnsupportedError(
            f"The shards of table '{table.name}' are on {', '.join(devices)}; "
            "raw files need all shards of a table on one device. Save it by "
            "tf.train.Checkpoint, which takes any devices."
        )


class DynamicEmbeddingSaver:
    """The base of the `saver` argument of a `KVCreator`."""


@dataclasses.dataclass(frozen=True)
class FileSystemSaverConfig:
    """The arguments of a `FileSystemSaver`."""

    proc_size: int | None = None
    proc_rank: int | None = None
    save_path: str | None = None
    buffer_size: int = 4096


class FileSystemSaver(DynamicEmbeddingSaver):
    """Accepted so that programs written for TFRA run; it has no effect.

    TFRA's saver writes tables beside a checkpoint, since TFRA's checkpoints
    copy tables in memory and do not restore into another number of shards.
    tfembed's checkpoints stream tables, restore into any number of shards and
    are atomic. For TFRA's files call `Variable.save_to_file_system`.

    Args:
      proc_size: None or 1.
      proc_rank: None or 0.
      save_path: None.
      buffer_size: not used.

    Raises:
      tfembed.errors.UnsupportedError: files of several processes, or in another
        folder.
    """

    def __init__(
        self,
        proc_size: int | None = None,
        proc_rank: int | None = None,
        save_path: str | None = None,
        buffer_size: int = 4096,
    ) -> None:
        self.config = FileSystemSaverConfig(
            proc_size, proc_rank, save_path, buffer_size
        )
        is_plain = proc_size in (None, 1) and proc_rank in (None, 0)
        if not is_plain or save_path is not None:
            raise errors.UnsupportedError(
                f"{self.config} asks for files of {proc_size} processes in "
                f"{save_path!r}; checkpoints hold the tables of their own "
                "process. Call `variable.save_to_file_system(dirpath, "
                "proc_size, proc_rank)` for such files."
            )
