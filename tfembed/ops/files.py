"""Ops that write tables as raw files and read such files: convert, call."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tfembed.ops import library

__all__ = ["RowFormat", "check", "read", "save"]


@dataclasses.dataclass(frozen=True)
class RowFormat:
    """The format of a pair of raw files, which they do not say themselves."""

    key_dtype: tf.DType
    value_dtype: tf.DType
    dim: int


def save(
    tables: Sequence[tf.Tensor],
    folder: tf.Tensor,
    stems: Sequence[str],
    *,
    buffer_size: int,
    append: bool = False,
    owner: str = "",
) -> tf.Operation | None:
    """Writes shards as pairs of files, `stem`-keys and `stem`-values.

    Args:
      tables: the handles of the shards.
      folder: string scalar; made where it is not there.
      stems: one a shard, without a folder.
      buffer_size: rows that are copied at a time.
      append: whether they go behind the rows that the files hold.
      owner: an id of the table whose shards they are; "": each is a table.

    Raises:
      tf.errors.AlreadyExistsError: the files hold rows of another table, which
        has written them and lives, or is called otherwise.
      tf.errors.OpError: the files cannot be written; or, with `append`, those
        there cannot be loaded. They are as they were, unless the text says that
        the rows are saved, but may not be on the disk yet.
    """
    return library.load().tfembed_table_save_files(
        tables,
        folder,
        list(stems),
        buffer_size=buffer_size,
        append=append,
        owner=owner,
    )


def check(
    tables: Sequence[tf.Tensor],
    folder: tf.Tensor,
    stems: Sequence[str],
    row_format: RowFormat,
    owner: str = "",
) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds pairs of files and checks that each can be read.

    Args:
      tables: the handles of those that the rows will go to. A function runs
        this after what it has done with them before, a save for example.
      folder: string scalar.
      stems: the stems of the pairs.
      row_format: what they must hold.
      owner: as for `save`; it may write these files from now on.

    Returns:
      paths: string [m, 2], of the keys and of the values of each stem.
      sizes: int64 [m, 2], in bytes.

    Raises:
      tf.errors.NotFoundError: a file is not there.
      tf.errors.InvalidArgumentError: saved with another format.
      tf.errors.DataLossError: the two files do not belong together, or are not
        what was saved.
    """
    result = library.load().tfembed_row_files_check(
        tables,
        folder,
        list(stems),
        owner=owner,
        **dataclasses.asdict(row_format),
    )
    return result.paths, result.sizes


def read(
    paths: tf.Tensor,
    offsets: tf.Tensor,
    row_format: RowFormat,
    *,
    max_rows: int,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(keys [n], values [n, dim], next offsets) from byte `offsets` on.

    Args:
      paths: string [2], a row of what `check` gave.
      offsets: int64 [2], zeros or what `read` gave.
      row_format: what the files hold.
      max_rows: n is at most that; it is 0 at the end.
    """
    result = library.load().tfembed_row_files_read(
        paths, offsets, max_rows=max_rows, **dataclasses.asdict(row_format)
    )
    return result.keys, result.values, result.next_offsets
