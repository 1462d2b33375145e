"""Wrappers of the ops that stream tables into checkpoints and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfembed.ops import library, private


def save(
    tables: Sequence[tf.Tensor],
    prefix: tf.Tensor,
    *,
    tensor_names: Sequence[str],
    shard_counts: Sequence[int],
    with_slots: bool = True,
    shard_numbers: Sequence[int] = (),
    all_shards: Sequence[int] = (),
    owners: Sequence[str] = (),
    owner: int = 0,
    token: str = "",
) -> tf.Operation | None:
    """Writes tables as one bundle of files, `prefix`.index and .data-*.

    Args:
      tables: the handles of the shards of all tables, table by table.
      prefix: string scalar.
      tensor_names: per table the prefix of its tensors' names.
      shard_counts: per table the number of its shards.
      with_slots: whether to write slots.
      shard_numbers: which shard of its table each handle is; empty where all
        shards of all tables are here.
      all_shards: per table the number of its shards everywhere, then.
      owners: the names of all devices that save together; empty: one alone.
        Each writes the prefix "<prefix>_<its number>".
      owner: which of `owners` this is.
      token: a word of this save alone; "<prefix>.meeting-<token>" is a file.

    Raises:
      tf.errors.FailedPreconditionError: that file cannot be seen from here.
      tf.errors.UnavailableError: another owner failed, or did not come.
      tf.errors.OpError: the files cannot be written.
    """
    return library.load().tfembed_table_save(
        tables,
        prefix,
        tensor_names=list(tensor_names),
        shard_counts=list(shard_counts),
        with_slots=with_slots,
        shard_numbers=list(shard_numbers),
        all_shards=list(all_shards),
        owners=list(owners),
        owner=owner,
        token=token,
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
    shard_numbers: Sequence[int] = (),
    all_shards: Sequence[int] = (),
    only_check: bool = False,
) -> tf.Tensor:
    """Replaces the content of tables by that of a checkpoint.

    Args:
      tables: as for `save`.
      prefix: string scalar.
      tensor_names: as for `save`.
      shard_counts: per table the current number of its shards.
      keep_seeds: per table whether the saved seed of its initial rows is
        ignored.
      deal_rows: per table whether its rows go to shard floormod(key, shards);
        False leaves it empty, for `read_chunk` and `table.import_rows`.
      load_slots: per table whether saved slots are loaded, and added to the
        rows if the table has none.
      shard_numbers, all_shards: as for `save`.
      only_check: whether to check all that is read, and change nothing.

    Returns:
      string [tables]: the checkpoint's description of each table.

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
        shard_numbers=list(shard_numbers),
        all_shards=list(all_shards),
        only_check=only_check,
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
    """Reads a chunk: (keys [n], rows for `table.import_rows`, chunk count).

    Keys are int64, also for tables of int32 keys, or strings. The rows have the
    layout of the rows of `table`. It raises the errors of `restore`.
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


def choose(
    tables: Sequence[tf.Tensor],
    prefix: tf.Tensor,
    shards: tf.Tensor,
    *,
    tensor_name: str,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses the rows of a saved table that stay in shards of bounded size.

    Args:
      tables: the handles of the table's shards.
      prefix: string scalar.
      shards: int32 [n], the shard of each saved row; -1: on another device.
      tensor_name: the prefix of the table's tensors' names.

    Returns:
      stays: bool [n], whether eviction would keep the row in its shard.
      begins: int64 [chunks + 1]; chunk c of `read_chunk` are the rows
        begins[c] to begins[c + 1].

    Raises:
      tf.errors.InvalidArgumentError: a shard gets more rows than it holds, and
        the checkpoint lacks the notes by which its policy judges.
      The errors of `restore`.
    """
    result = library.load().tfembed_table_choose(
        tables, prefix, shards, tensor_name=tensor_name
    )
    return result.stays, result.begins


def read_waiting(
    table: tf.Tensor,
    prefix: tf.Tensor,
    chunk: tf.Tensor,
    *,
    tensor_name: str,
    has_string_keys: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Reads one chunk of keys that waited for admission.

    Returns (keys [n], int32 [n] the steps that saw each key, number of chunks).
    Keys are as in `read_chunk`; if no key waited, chunk 0 is empty. It raises
    the errors of `restore`.
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
    """Reads tensors of any program's checkpoint; a missing one is [0].

    Args:
      prefix: string scalar.
      tensors: name of a tensor -> its dtype.

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
    """Checks that keys that were read for a table are distinct.

    Args:
      keys: int32, int64 or strings, of any shape.
      table_name: the table's name in errors.

    Raises:
      tf.errors.InvalidArgumentError: a repeated key; the text names it.
    """
    with tf.device(keys.device):
        return library.load().tfembed_check_distinct(
            keys, table_name=table_name
        )


def perfect_hash(
    hashes: npt.NDArray[np.int64],
    splits: npt.NDArray[np.int64],
    first: int,
    *,
    regions: int,
    buckets: int,
    places: int,
) -> npt.NDArray[np.uint16] | None:
    """Returns the pilots of some regions of a perfect hash; None: there are none.

    Args:
      hashes: [n], the bits of sorted unsigned hashes.
      splits: [m + 1], where the hashes of each region begin and end.
      first: the number of the first region.
      regions, buckets, places: the numbers of all regions, and of the buckets
        and places of each.

    Raises:
      tf.errors.InvalidArgumentError: these do not fit together.
    """
    with tf.device("/CPU:0"):
        pilots, is_found = library.load().tfembed_perfect_hash(
            hashes,
            splits,
            first,
            regions=regions,
            buckets=buckets,
            places=places,
        )
    return pilots.numpy() if is_found else None


def check(
    prefix: tf.Tensor, *, checksums: bool = True
) -> tuple[tf.Tensor, tf.Tensor]:
    """Checks a checkpoint's index against its files; returns what they have.

    Args:
      prefix: string scalar.
      checksums: whether to read all bytes and compare checksums; False compares
        only sizes, before TensorFlow's own reader, which some damaged indices
        crash.

    Returns:
      string [n], the names of the tensors; int32 [n], the enum numbers of their
      dtypes.

    Raises:
      tf.errors.NotFoundError: a file is missing.
      tf.errors.InvalidArgumentError: not a regular file, or too large.
      tf.errors.DataLossError: a file is damaged or truncated.
    """
    found = library.load().tfembed_checkpoint_check(prefix, checksums=checksums)
    return found.names, found.dtypes


def check_sizes(path: str) -> None:
    """Checks as `check` without checksums, at once, even in a graph.

    A checkpoint without an index, of TensorFlow 1's first format, passes.
    """
    if not tf.io.gfile.exists(f"{path}.index"):
        return
    # A session would print a line of TensorFlow's about its passes.
    with private.eager_mode(), tf.device(None):
        check(tf.constant(path), checksums=False)
