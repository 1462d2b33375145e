"""Ops that stream tables into checkpoints and back: convert, call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tfembed.ops import library, private


def save(
    tables: Sequence[tf.Tensor],
    prefix: tf.Tensor,
    *,
    tensor_names: Sequence[str],
    shard_counts: Sequence[int],
    with_slots: bool = True,
) -> tf.Operation | None:
    """Writes tables as one bundle of files, `prefix`.index and .data-*.

    Args:
      tables: the handles of the shards of all tables, table by table.
      prefix: string scalar.
      tensor_names: per table what its tensors' names begin with.
      shard_counts: per table the number of its shards.
      with_slots: False: as of tables without an optimizer.

    Raises:
      tf.errors.OpError: the files cannot be written.
    """
    return library.load().tfembed_table_save(
        tables,
        prefix,
        tensor_names=list(tensor_names),
        shard_counts=list(shard_counts),
        with_slots=with_slots,
    )


def restore(
    tables: Sequence[tf.Tensor],
    prefix: tf.Tensor,
    *,
    tensor_names: Sequence[str],
    shard_counts: Sequence[int],
    keep_seeds: Sequence[bool],
    deal_rows: Sequence[bool],
    load_slots: Sequence[bool],
) -> tf.Tensor:
    """Replaces the content of tables by what a checkpoint has.

    Args:
      tables: as for `save`.
      prefix: string scalar.
      tensor_names: as for `save`.
      shard_counts: per table the number of its shards now.
      keep_seeds: per table whether the saved seed of its initial rows is
        ignored.
      deal_rows: per table whether its rows go to shard floormod(key, shards);
        False leaves it empty, for `read_chunk` and `table.import_rows`.
      load_slots: per table whether saved slots are loaded, and laid out where
        they are not.

    Returns:
      string [tables]: what the checkpoint says of each.

    Raises:
      tf.errors.NotFoundError: no such checkpoint, or no such table in it.
      tf.errors.InvalidArgumentError: another width, or another rule's slots.
      tf.errors.DataLossError: damaged files. In all three cases no table has
        been changed.
    """
    return library.load().tfembed_table_restore(
        tables,
        prefix,
        tensor_names=list(tensor_names),
        shard_counts=list(shard_counts),
        keep_seeds=list(keep_seeds),
        deal_rows=list(deal_rows),
        load_slots=list(load_slots),
    )


def read_chunk(
    table: tf.Tensor,
    prefix: tf.Tensor,
    chunk: tf.Tensor,
    *,
    tensor_name: str,
    load_slots: bool,
    has_string_keys: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(keys [n], full rows, as `table.import_rows` takes them, number of chunks).

    Keys are int64, for tables of int32 too, or strings. The rows are laid out as
    those of `table`. Raises as `restore`.
    """
    result = library.load().tfembed_table_read_chunk(
        table,
        prefix,
        chunk,
        tensor_name=tensor_name,
        load_slots=load_slots,
        Tkey=tf.string if has_string_keys else tf.int64,
    )
    return result.keys, result.full_rows, result.num_chunks


def read_waiting(
    table: tf.Tensor,
    prefix: tf.Tensor,
    chunk: tf.Tensor,
    *,
    tensor_name: str,
    has_string_keys: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(keys [n] that waited for admission, int32 steps [n] that saw each, chunks).

    Keys as in `read_chunk`; where none waited, chunk 0 has none. Raises as
    `restore`.
    """
    result = library.load().tfembed_table_read_waiting(
        table,
        prefix,
        chunk,
        tensor_name=tensor_name,
        Tkey=tf.string if has_string_keys else tf.int64,
    )
    return result.keys, result.seen, result.num_chunks


def read(
    prefix: tf.Tensor, *, tensors: Mapping[str, tf.DType]
) -> list[tf.Tensor]:
    """Tensors of a checkpoint of any program; [0] for one that it has not.

    Args:
      prefix: string scalar.
      tensors: their dtypes, by name.

    Raises:
      tf.errors.InvalidArgumentError: another dtype.
      tf.errors.DataLossError: damaged files.
    """
    return list(
        library.load().tfembed_checkpoint_read(
            prefix, tensor_names=list(tensors), dtypes=list(tensors.values())
        )
    )


def check_distinct(keys: tf.Tensor, *, table_name: str) -> tf.Operation | None:
    """Checks that no two keys, which were read for a table, are the same.

    Args:
      keys: int32, int64 or strings, of any shape.
      table_name: the table's, for errors.

    Raises:
      tf.errors.InvalidArgumentError: a key comes more than once; it names the key.
    """
    with tf.device(keys.device):
        return library.load().tfembed_check_distinct(
            keys, table_name=table_name
        )


def check(prefix: tf.Tensor, *, checksums: bool = True) -> tf.Operation | None:
    """Checks all that the index of a checkpoint says, and reads all files.

    Args:
      prefix: string scalar.
      checksums: whether bytes are read and their checksums compared; False
        compares sizes alone, before TensorFlow's own reader, which ends the
        process at some indices.

    Raises:
      tf.errors.NotFoundError: a file is missing.
      tf.errors.InvalidArgumentError: a file is none, or too large.
      tf.errors.DataLossError: a file is damaged or cut off.
    """
    return library.load().tfembed_checkpoint_check(prefix, checksums=checksums)


def check_sizes(path: str) -> None:
    """Does what `check` does without checksums, at once, in a graph too.

    A checkpoint without an index, of TensorFlow 1's first format, passes.
    """
    if not tf.io.gfile.exists(f"{path}.index"):
        return
    # A session would print a line of TensorFlow's about its passes.
    with private.eager_mode(), tf.device(None):
        check(tf.constant(path), checksums=False)
