"""Rows of a table that workers share, each those of one remainder of the keys.

A worker asks the owners of its keys for their rows, and gives the owners the
sums of its gradients. What crosses is the distinct keys, their rows, and then
keys and sums. The owner of a key is floormod(key, number of workers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.cluster.workers import Workers, workers
from tfembed.ops import parts
from tfembed.tables.arguments import key_tensor

__all__ = ["SharedRows", "shared_rows", "sums_of_workers"]


def shared_rows(table: Any) -> SharedRows | None:
    """Returns how the workers in scope share a table that each has made.

    The result is None where there are no workers.

    Args:
      table: a `HashTable` or `StringTable`.

    Raises:
      tfembed.errors.UnsupportedError: keys or rows that are strings; workers of
        several replicas each.
      tfembed.errors.StateError: other workers make another table.
    """
    found = workers()
    return None if found is None else SharedRows(found, table)


class SharedRows:
    """A table of which each worker has the rows of its keys.

    Args:
      workers: the workers.
      table: this worker's rows; lookups of other keys give initial rows.
    """

    def __init__(self, workers: Workers, table: Any) -> None:
        if tf.string in (table.key_dtype, table.value_dtype):
            raise errors.UnsupportedError(
                f"Table '{table.name}' has strings, which workers of a "
                "MultiWorkerMirroredStrategy do not share in this release. "
                "Make int64 keys of them, by tf.strings.to_hash_bucket_strong; "
                "or name `devices`, for a table of each worker's own."
            )
        workers.agree(
            f"table '{table.name}' of dim {table.dim}, seed {table.seed}, keys "
            f"{table.key_dtype.name}, values {table.value_dtype.name}"
        )
        self.workers = table.workers = workers
        self._table = table
        self._channel = workers.channel(table.name)

    def __getattr__(self, name: str) -> Any:
        # What is not below is of this worker's rows: size, keys, export, ...
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._table, name)

    def read_rows(self, keys: Any) -> tf.Tensor:
        """Returns the rows of `lookup` alone."""
        return self.lookup(keys)[0]

    def lookup(self, keys: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Looks up keys of all workers; every worker must call this.

        Args:
          keys: keys of any shape, of this worker.

        Returns:
          rows: keys.shape + [dim].
          exists: bool, keys.shape.
        """
        table = self._table
        keys = key_tensor(keys, table.key_dtype, table.name)
        distinct, positions = tf.unique(tf.reshape(keys, [-1]))
        places = _places(distinct, self.workers.count)
        asked = parts.exchange(
            self._channel, [_bytes(tf.gather(distinct, p)) for p in places]
        )
        theirs = [_numbers(part, table.key_dtype, [-1]) for part in asked]
        sizes = [tf.size(one) for one in theirs]
        found, exists = table.lookup(tf.concat(theirs, 0))
        answers = [
            tf.concat([_bytes(rows), _bytes(tf.cast(there, tf.uint8))], 0)
            for rows, there in zip(
                tf.split(found, sizes, num=len(sizes)),
                tf.split(exists, sizes, num=len(sizes)),
                strict=True,
            )
        ]
        width = table.dim * table.value_dtype.size
        counts = tf.stack([tf.size(p, tf.int64) for p in places])
        received = parts.exchange(
            self._channel, answers, sizes=counts * (width + 1)
        )
        ends = [count * width for count in tf.unstack(counts)]
        rows = tf.concat(
            [x[:n] for x, n in zip(received, ends, strict=True)], 0
        )
        there = tf.concat(
            [x[n:] for x, n in zip(received, ends, strict=True)], 0
        )
        # From the order of the owners to that of the keys.
        order = tf.math.invert_permutation(tf.concat(places, 0))
        index = tf.reshape(tf.gather(order, positions), tf.shape(keys))
        shape = [tf.size(distinct), table.dim]
        rows = _numbers(rows, table.value_dtype, shape)
        rows, there = tf.gather(rows, index), tf.gather(there, index)
        rows.set_shape(keys.shape.concatenate([table.dim]))
        return rows, tf.cast(there, tf.bool)

    def contains(self, keys: Any) -> tf.Tensor:
        """Says which of `keys` are there; every worker must call this."""
        return self.lookup(keys)[1]

    def owns(self, keys: tf.Tensor) -> tf.Tensor:
        """Says of which `keys` this worker has the rows: bool, keys.shape."""
        owner = tf.math.floormod(keys, self.workers.count)
        return tf.equal(owner, self.workers.index)

    def upsert(self, keys: Any, values: Any) -> Any:
        """Writes rows of all workers; every worker must call this.

        Of a key that several workers write, the row of the last one stays.

        Args:
          keys, values: as for `HashTable.upsert`, of this worker.
        """
        table = self._table
        keys = key_tensor(keys, table.key_dtype, table.name)
        values = tf.convert_to_tensor(values, table.value_dtype)
        values = tf.reshape(values, [tf.size(keys), table.dim])
        return table.upsert(*self._to_owners(keys, values))

    def remove(self, keys: Any) -> Any:
        """Removes keys of all workers; every worker must call this.

        Args:
          keys: keys of any shape, of this worker.
        """
        keys = key_tensor(keys, self._table.key_dtype, self._table.name)
        return self._table.remove(*self._to_owners(keys))

    def accum(self, *unused: Any) -> Any:
        """Raises UnsupportedError: see `write_trained`."""
        raise self._not_shared("`accum`")

    def write_trained(self, *unused: Any, **options: Any) -> Any:
        """Raises UnsupportedError: rows with slots are written by owners."""
        raise self._not_shared("Writing rows with their slots")

    def _not_shared(self, what: str) -> errors.UnsupportedError:
        return errors.UnsupportedError(
            f"{what} does not work for '{self._table.name}', whose rows are "
            "shared by the workers of a MultiWorkerMirroredStrategy. Write rows "
            "by `upsert`, or train them."
        )

    def _to_owners(
        self, keys: tf.Tensor, *columns: tf.Tensor
    ) -> list[tf.Tensor]:
        """Returns the keys [n] that this worker owns, and their columns.

        Args:
          keys: keys of any shape.
          columns: numbers [keys, width].
        """
        flat = [tf.reshape(keys, [-1]), *columns]
        (found,) = _dealt(self.workers.count, self._channel, [flat], "")
        return found


def sums_of_workers(
    workers: Workers, sums: Sequence[tf.IndexedSlices], error: Any
) -> list[tf.IndexedSlices]:
    """Exchanges the gradients of a step, so that each owner has those of all.

    Args:
      workers: the workers; each calls this with the gradients of the same
        tables.
      sums: per table the sums of distinct keys, float32 [n, dim].
      error: a string scalar; if it is not empty, the step fails on all workers
        with this text.

    Returns:
      Per table the gradients of the keys that this worker owns; a key comes at
      most once from each worker, in the order of the workers.
    """
    found = _dealt(
        workers.count,
        workers.steps,
        [(one.indices, tf.cast(one.values, tf.float32)) for one in sums],
        error,
    )
    return [tf.IndexedSlices(rows, keys) for keys, rows in found]


def _dealt(
    count: int, channel: Any, tables: Sequence[Sequence[tf.Tensor]], error: Any
) -> list[list[tf.Tensor]]:
    """Sends the columns of several tables to the owners of their keys.

    A part has the number of keys of each table, int64, and then the columns of
    the first table, of the second, and so on; the first column are the keys.
    """
    sent: list[list[tf.Tensor]] = [[] for _ in range(count)]
    sizes: list[list[tf.Tensor]] = [[] for _ in range(count)]
    for columns in tables:
        for owner, place in enumerate(_places(columns[0], count)):
            sizes[owner].append(tf.size(place, tf.int64))
            sent[owner] += [_bytes(tf.gather(x, place)) for x in columns]
    received = parts.exchange(
        channel,
        [
            tf.concat([_bytes(tf.stack(n)), *columns], 0)
            for n, columns in zip(sizes, sent, strict=True)
        ],
        error=error,
    )
    by_worker = [_read(part, tables) for part in received]
    return [
        [
            tf.concat([columns[table][i] for columns in by_worker], 0)
            for i in range(len(tables[table]))
        ]
        for table in range(len(tables))
    ]


def _read(
    part: tf.Tensor, like: Sequence[Sequence[tf.Tensor]]
) -> list[list[tf.Tensor]]:
    end = 8 * len(like)
    sizes = tf.unstack(_numbers(part[:end], tf.int64, [len(like)]))
    part = part[end:]
    found = []
    for n, columns in zip(sizes, like, strict=True):
        read = []
        for column in columns:
            shape = [n, *column.shape[1:]]
            size = n * column.dtype.size * column.shape[1:].num_elements()
            read.append(_numbers(part[:size], column.dtype, shape))
            part = part[size:]
        found.append(read)
    return found


def _places(keys: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Returns the positions of each owner's keys."""
    owner = tf.cast(tf.math.floormod(keys, count), tf.int32)
    places: list[tf.Tensor] = tf.dynamic_partition(
        tf.range(tf.size(keys)), owner, count
    )
    return places


def _bytes(numbers: tf.Tensor) -> tf.Tensor:
    if numbers.dtype == tf.bool:
        numbers = tf.cast(numbers, tf.uint8)
    return tf.reshape(tf.bitcast(numbers, tf.uint8), [-1])


def _numbers(
    part: tf.Tensor, dtype: tf.DType, shape: Sequence[Any]
) -> tf.Tensor:
    """Reads the numbers of a shape from bytes; -1 stands for what is left."""
    if dtype == tf.bool:
        return tf.cast(tf.reshape(part, shape), tf.bool)
    if dtype.size > 1:
        part = tf.reshape(part, [-1, dtype.size])
    return tf.reshape(tf.bitcast(part, dtype), shape)
