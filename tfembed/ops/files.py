"""Wrappers of the ops that write and read tables as raw files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tfembed.ops import library

__all__ = ["RowFormat", "check", "read", "save"]


@dataclasses.dataclass(frozen=True)
class RowFormat:
    """The format of a pair of raw files, which have no header."""

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
    deal_by_low_bits: bool = False,
) -> tf.Operation | None:
    """Writes shards as pairs of files, `stem`-keys and `stem`-values.

    Args:
      tables: the handles of the shards.
      folder: string scalar; created if it does not exist.
      stems: one per shard, without a folder.
      buffer_size: rows that are copied at a time.
      append: whether to append to the rows in the files.
      owner: an id of the table that has the shards; "": each shard is a table.
      deal_by_low_bits: whether a row goes into pair (key & 0x7fffffff) % pairs
        in place of that of its shard; int64 keys only.

    Raises:
      tf.errors.AlreadyExistsError: the files have rows of another table that
        still exists, or of a table with another name.
      tf.errors.OpError: the files cannot be written; or, with `append`, the old
        files cannot be loaded. The files are unchanged, unless the text says
        that the rows are saved, but may not be on the disk yet.
    """
    return library.load().tfembed_table_save_files(
        tables,
        folder,
        list(stems),
        buffer_size=buffer_size,
        append=append,
        owner=owner,
        deal_by_low_bits=deal_by_low_bits,
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
      tables: the handles of the tables that will get the rows. They order the
        check in a function after earlier ops on these tables, as a save.
      folder: string scalar.
      stems: the stems of the pairs.
      row_format: the expected format.
      owner: as for `save`; this table may overwrite the files from now on.

    Returns:
      paths: string [m, 2], the paths of keys and values of each stem.
      sizes: int64 [m, 2], in bytes.

    Raises:
      tf.errors.NotFoundError: a file is missing.
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
    """Reads (keys [n], values [n, dim], next offsets) from byte `offsets` on.

    Args:
      paths: string [2], a row of the paths of `check`.
      offsets: int64 [2], zeros or the offsets of the last `read`.
      row_format: the format of the files.
      max_rows: the largest n; n is 0 at the end.
    """
    result = library.load().tfembed_row_files_read(
        paths, offsets, max_rows=max_rows, **dataclasses.asdict(row_format)
    )
    return result.keys, result.values, result.next_offsets
