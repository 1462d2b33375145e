"""Pairs of raw files of keys and values: docs/formats/row_files.md."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.ops import files as file_ops
from tfembed.ops import table as table_ops
from tfembed.ops.files import RowFormat
from tfembed.ops.private import orders_by_itself
from tfembed.policies import SmallestNorm
from tfembed.tables import HashTable

__all__ = ["FileStem", "find_pairs", "find_stems", "load", "save_set"]


_READ_AHEAD_BYTES = 4 << 20
# The policy that judges by values, which raw files have.
_WITHOUT_NOTES = SmallestNorm().policy_text()
_OF_SHARD = r"_mht_\d+of\d+(?:_rank\d+_size\d+)?"


@dataclasses.dataclass(frozen=True, order=True)
class FileStem:
    """The name of a pair of files, without "-keys" and "-values".

    Attributes:
      name: the name of the variable.
      num_shards: the number of shards of the variable when it was saved.
      size: the number of processes that saved, each its own rows.
      rank: the number of the process, from 0.
      shard: the number of the shard, from 0.
    """

    name: str
    num_shards: int
    size: int = 1
    rank: int = 0
    shard: int = 0

    @property
    def of_shard(self) -> str:
        """The name without rank and size, which views of the shard have."""
        name = self.name.replace("/", "_")
        return f"{name}_mht_{self.shard + 1}of{self.num_shards}"

    def __str__(self) -> str:
        return f"{self.of_shard}_rank{self.rank}_size{self.size}"


def find_stems(folder: str, name: str) -> list[FileStem]:
    """Returns all pairs of a variable in a folder, sorted.

    Raises:
      tf.errors.NotFoundError: the folder, or a file of `name`, does not exist.
    """
    pattern = re.compile(
        re.escape(name.replace("/", "_"))
        + r"_mht_(\d+)of(\d+)_rank(\d+)_size(\d+)-(?:keys|values)"
    )
    stems = set()
    for file in _names(folder):
        if match := pattern.fullmatch(file.rstrip("/")):
            shard, num_shards, rank, size = map(int, match.groups())
            stems.add(FileStem(name, num_shards, size, rank, shard - 1))
    if not stems:
        raise _no_files(folder, name, FileStem(name, 1))
    return sorted(stems)


def find_pairs(folder: str, stem: str) -> list[str]:
    """Returns all pairs in a folder of the table with the pair `stem`.

    These are `stem` and the pairs that a variable of that name, or its shards,
    would write, for any number of shards: `<name>_mht_<shard>of<shards>` with
    or without rank and size, where `stem` is `<name>` or one of these.

    Raises:
      tf.errors.NotFoundError: the folder, or such a pair, does not exist.
    """
    name = re.sub(_OF_SHARD + "$", "", stem)
    pattern = re.compile(f"({re.escape(name)}{_OF_SHARD})-keys")
    pairs = set()
    for file in _names(folder):
        if file == f"{stem}-keys":
            pairs.add(stem)
        elif match := pattern.fullmatch(file):
            pairs.add(match[1])
    if not pairs:
        raise _no_files(folder, name, stem)
    return sorted(pairs)


def _names(folder: str) -> list[str]:
    """Returns the names of all entries of a folder.

    TensorFlow's list of a local folder stops silently at an error of the
    system; a load by such a list would miss rows.
    """
    if "://" in folder:
        names: list[str] = tf.io.gfile.listdir(folder)
        return names
    try:
        return [path.name for path in pathlib.Path(folder).iterdir()]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise tf.errors.NotFoundError(
            None, None, f"There is no folder '{folder}'."
        ) from error
    except OSError as error:
        raise tf.errors.UnavailableError(
            None, None, f"Folder '{folder}' cannot be listed: {error}."
        ) from error


def _no_files(folder: str, name: str, stem: Any) -> tf.errors.NotFoundError:
    return tf.errors.NotFoundError(
        None,
        None,
        f"There is no file of '{name}' in '{folder}': none is called "
        f"'{stem}-keys' or alike.",
    )


def save_set(stems: Sequence[FileStem], folder: str) -> list[FileStem]:
    """Returns `stems`, after a check that they are all files of one save.

    Raises:
      tfembed.errors.CheckpointError: they belong to several saves.
      tf.errors.NotFoundError: some files of the save are missing.
    """
    first = stems[0]
    kinds = sorted({(s.num_shards, s.size) for s in stems})
    if len(kinds) > 1:
        found = ", ".join(
            f"{n} shards in {size} processes" for n, size in kinds
        )
        raise errors.CheckpointError(
            f"'{folder}' holds files of '{first.name}' from several saves: "
            f"{found}. Remove all but one, or name the files by "
            "`file_name_list`."
        )
    missing = {
        dataclasses.replace(first, rank=rank, shard=shard)
        for rank in range(first.size)
        for shard in range(first.num_shards)
    } - set(stems)
    if missing:
        names = ", ".join(f"'{stem}'" for stem in sorted(missing))
        raise tf.errors.NotFoundError(
            None, None, f"'{folder}' has no files {names}."
        )
    return list(stems)


def load(
    table: HashTable,
    folder: tf.Tensor,
    stems: Sequence[str],
    *,
    buffer_size: int,
    select: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> tf.Operation | None:
    """Reads pairs of files in chunks, one pair after the other.

    Everything is checked before the first row is written: the files, and in a
    first pass the shards that a partitioner gives the keys. Files of at most 4
    MB together are read as a whole first, except files of strings that would
    take more than four times their size. If larger files fail on their second
    read, the rows before the failure are loaded.

    A table of bounded size gets at most as many rows at a time as each of its
    shards may hold. Where the policy judges by values, the rows stay that
    `evict` would keep of each shard. Other policies judge by notes, which raw
    files lack, so that no shard may get more keys than it holds; fewer keys
    are written as `upsert` writes them.

    Args:
      table: the table to load into, with its dtypes and width.
      folder: the path of the folder, string [].
      stems: the stems of the pairs.
      buffer_size: the number of rows of a chunk, which has at most 2 MB.
      select: (keys [n]) -> bool [n], the keys to load; None: all.

    Returns:
      The op in a graph, None in eager mode.

    Raises:
      As for `tfembed.ops.files.check`; also
      tf.errors.InvalidArgumentError: the partitioner returns a shard that does
        not exist, or files have too many keys for a shard of bounded size.
    """
    bounds = [shard.options.max_size for shard in table.shards]
    max_rows = min([buffer_size, *(bound for bound in bounds if bound)])
    is_bounded = any(bounds)
    has_notes = table.shards[0].options.eviction != _WITHOUT_NOTES

    def selected(
        keys: tf.Tensor, values: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        if select is None:
            return keys, values
        own = select(keys)
        return keys[own], values[own]

    def write(keys: tf.Tensor, values: tf.Tensor) -> None:
        keys, values = selected(keys, values)
        if is_bounded and not has_notes:
            keys, values = _make_room(table, keys, values)
        table.upsert(keys, values)

    def check(keys: tf.Tensor, values: tf.Tensor) -> None:
        if table.partitioner is not None:
            table.partition(selected(keys, values)[0])

    def run() -> tf.Tensor:
        row_format = RowFormat(table.key_dtype, table.value_dtype, table.dim)
        paths, sizes = file_ops.check(
            table.handles, folder, stems, row_format, table.file_owner
        )
        chunks = _Chunks(paths, sizes, row_format, max_rows)
        checks = []
        if is_bounded and has_notes:
            checks = _check_fit(table, chunks, selected)

        def stream() -> tf.Tensor:
            checked = tf.constant(0)
            if table.partitioner is not None:
                checked = chunks.for_each(check)
            with tf.control_dependencies([checked]):
                return chunks.for_each(write)

        with tf.control_dependencies(checks):
            return tf.cond(
                _may_be_kept(sizes, row_format),
                lambda: chunks.read_ahead(check, write),
                stream,
            )

    if orders_by_itself():
        run()
        return None
    # A function orders its ops itself; a loop in a graph does not.
    return tf.function(run, autograph=False)().op


def _check_fit(
    table: HashTable,
    chunks: _Chunks,
    selected: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
) -> list[tf.Operation]:
    """Refuses files of more keys than a shard of bounded size holds.

    It holds no more keys in memory than the table may.
    """
    bounds = [shard.options.max_size for shard in table.shards]
    keys = chunks.distinct_keys(selected, at_most=sum(bounds))
    counts = [tf.size(part) for part in table.partition(keys).split(keys)]
    checks = [
        tf.debugging.assert_less_equal(
            count,
            bound,
            f"The files have more keys for a shard of table '{table.name}' than "
            "its share of `max_size` (the number of keys, at least, and the "
            "share follow), and raw files do not say which of them its policy "
            f"'{table.shards[0].options.eviction}' would keep. Nothing was "
            "changed. Make `max_size` larger, or load into a table without it, "
            "and `evict`",
        )
        for count, bound in zip(counts, bounds, strict=True)
    ]
    return [one for one in checks if one is not None]


def _make_room(
    table: HashTable, keys: tf.Tensor, values: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Evicts the rows that would go if a batch were added; returns its rest.

    A table of bounded size would evict the worst rows of a sample. This choice
    is exact in each shard, and needs all of its rows' worth.
    """
    parts = table.partition(keys)
    kept = []
    for shard, own_keys, own_values in zip(
        table.shards, parts.split(keys), parts.split(values), strict=True
    ):
        bound = shard.options.max_size
        own_keys, own_values = _last_of_each(own_keys, own_values)
        there, worth = table_ops.worth(
            shard.resource_handle, key_dtype=table.key_dtype
        )
        # Rows that the batch does not replace.
        n = tf.size(own_keys)
        both = tf.unique(tf.concat([own_keys, there], 0)).idx
        others = both[n:] >= n
        there, worth = there[others], worth[others]
        num_others = tf.size(there)
        order = tf.argsort(
            tf.concat([worth, norms(own_values)], 0), stable=True
        )
        left_out = order[: tf.maximum(num_others + n - bound, 0)]
        evicted = tf.gather(there, left_out[left_out < num_others])
        own_left_out = left_out[left_out >= num_others] - num_others
        with tf.control_dependencies([table.evict_keys(evicted).keys]):
            stays = tf.tensor_scatter_nd_update(
                tf.ones([n], tf.bool),
                own_left_out[:, None],
                tf.zeros(tf.shape(own_left_out), tf.bool),
            )
        kept.append((own_keys[stays], own_values[stays]))
    own_keys, own_values = zip(*kept, strict=True)
    return tf.concat(own_keys, 0), tf.concat(own_values, 0)


def _last_of_each(
    keys: tf.Tensor, values: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns distinct keys, each with its last row."""
    distinct, groups = tf.unique(keys)
    last = tf.math.unsorted_segment_max(
        tf.range(tf.size(keys)), groups, tf.size(distinct)
    )
    return distinct, tf.gather(values, last)


def norms(rows: tf.Tensor) -> tf.Tensor:
    """Returns the worth of rows [n, dim] as `SmallestNorm` judges them."""
    norms = tf.sqrt(tf.reduce_sum(tf.square(tf.cast(rows, tf.float64)), 1))
    return tf.where(tf.math.is_nan(norms), -tf.ones_like(norms), norms)


def _may_be_kept(sizes: tf.Tensor, row_format: RowFormat) -> tf.Tensor:
    """Whether all rows of files of these sizes [m, 2] fit into memory."""
    keys, values = tf.unstack(tf.reduce_sum(sizes, 0))
    # TensorFlow needs 24 bytes for an empty string, a file 4.
    in_memory = values + (6 if row_format.key_dtype == tf.string else 1) * keys
    most = tf.constant(_READ_AHEAD_BYTES, sizes.dtype)
    return (keys + values <= most) & (
        in_memory <= tf.maximum(most, 4 * (keys + values))
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Chunks:
    """The rows of pairs of files, in chunks.

    Attributes:
      paths, sizes: the result of `tfembed.ops.files.check`.
      row_format: the dtypes and the width of the rows.
      max_rows: the maximum number of rows of a chunk.
    """

    paths: tf.Tensor
    sizes: tf.Tensor
    row_format: RowFormat
    max_rows: int

    def for_each(
        self, visit: Callable[[tf.Tensor, tf.Tensor], Any]
    ) -> tf.Tensor:
        """Calls visit(keys, values) for each chunk; returns the loop's end."""

        def body(pair: tf.Tensor, offsets: tf.Tensor) -> list[tf.Tensor]:
            keys, values, pair, offsets = self._read(pair, offsets)
            visit(keys, values)
            return [pair, offsets]

        end, _ = tf.while_loop(
            lambda pair, offsets: pair < tf.shape(self.sizes)[0],
            body,
            self._start(),
            parallel_iterations=1,
        )
        return end

    def distinct_keys(
        self,
        selected: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
        *,
        at_most: int,
    ) -> tf.Tensor:
        """Returns the distinct keys [n] of all rows; stops beyond `at_most`."""

        def body(
            pair: tf.Tensor, offsets: tf.Tensor, found: tf.Tensor
        ) -> list[tf.Tensor]:
            keys, values, pair, offsets = self._read(pair, offsets)
            keys, _ = selected(keys, values)
            return [pair, offsets, tf.unique(tf.concat([found, keys], 0)).y]

        # With a first chunk, since TensorFlow would take the shape [0] of no
        # keys for that of all.
        keys, values, pair, offsets = self._read(*self._start())
        keys, _ = selected(keys, values)
        *_, found = tf.while_loop(
            lambda pair, offsets, found: (
                (pair < tf.shape(self.sizes)[0]) & (tf.size(found) <= at_most)
            ),
            body,
            [pair, offsets, tf.unique(keys).y],
            parallel_iterations=1,
        )
        return found

    def read_ahead(
        self,
        check: Callable[[tf.Tensor, tf.Tensor], Any],
        write: Callable[[tf.Tensor, tf.Tensor], Any],
    ) -> tf.Tensor:
        """Calls `check` for each chunk, then `write`; reads each chunk once."""
        kept = [
            tf.TensorArray(dtype, size=0, dynamic_size=True, infer_shape=False)
            for dtype in (
                self.row_format.key_dtype,
                self.row_format.value_dtype,
            )
        ]

        def read(
            pair: tf.Tensor,
            offsets: tf.Tensor,
            n: tf.Tensor,
            all_keys: tf.TensorArray,
            all_values: tf.TensorArray,
        ) -> list[Any]:
            keys, values, pair, offsets = self._read(pair, offsets)
            check(keys, values)
            all_keys = all_keys.write(n, keys)
            all_values = all_values.write(n, values)
            for array in (all_keys, all_values):
                # Eager TensorArrays raise an error where the next read fails.
                if hasattr(array, "mark_used"):
                    array.mark_used()
            return [pair, offsets, n + 1, all_keys, all_values]

        _, _, num_chunks, *kept = tf.while_loop(
            lambda pair, *others: pair < tf.shape(self.sizes)[0],
            read,
            [*self._start(), tf.constant(0), *kept],
            parallel_iterations=1,
        )

        def write_chunk(n: tf.Tensor) -> list[tf.Tensor]:
            keys, values = (chunks.read(n) for chunks in kept)
            write(
                tf.ensure_shape(keys, [None]),
                tf.ensure_shape(values, [None, self.row_format.dim]),
            )
            return [n + 1]

        (end,) = tf.while_loop(
            lambda n: n < num_chunks,
            write_chunk,
            [tf.constant(0)],
            parallel_iterations=1,
        )
        return end

    @staticmethod
    def _start() -> list[tf.Tensor]:
        """Returns the first pair, and the offsets in it."""
        return [tf.constant(0), tf.zeros([2], tf.int64)]

    def _read(
        self, pair: tf.Tensor, offsets: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns a chunk's keys and values, and the position of the next."""
        keys, values, following = file_ops.read(
            self.paths[pair], offsets, self.row_format, max_rows=self.max_rows
        )
        done = following[0] >= self.sizes[pair, 0]
        return (
            keys,
            values,
            tf.where(done, pair + 1, pair),
            tf.where(done, tf.zeros([2], tf.int64), following),
        )
