"""How tables of strings are written into and read from checkpoints.

A table is two tensors, `keys` [n] and `values` [n, dim], whatever its number of
shards. `table_saver` saves and restores them together with hash tables.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from tfembed import checks
from tfembed.checkpoint import private
from tfembed.ops import checkpoint as checkpoint_ops
from tfembed.tables import StringTable
from tfembed.tables.string_table import StringShard

__all__ = ["SavedStrings", "check_sizes", "register", "save"]


# Writing takes two copies of its rows.
_ROWS_AT_A_TIME = 1 << 16


def register() -> None:
    """Registers the classes that a SavedModel names."""
    private.register_serializable("StringTable", StringTable)
    private.register_serializable("StringShard", StringShard)


def _tensor_names(path: str) -> list[str]:
    return [f"{path}/.ATTRIBUTES/{tensor}" for tensor in ("keys", "values")]


def save(
    trackables: Mapping[str, StringTable], file_prefix: tf.Tensor
) -> tf.Tensor:
    """Writes tables, by their paths, as one bundle of files; its prefix."""
    names = [name for path in trackables for name in _tensor_names(path)]
    done = tf.raw_ops.SaveV2(
        prefix=file_prefix,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[x for table in trackables.values() for x in table.export()],
    )
    with tf.control_dependencies([] if done is None else [done]):
        return tf.identity(file_prefix)


def check_sizes(prefix: tf.Tensor) -> tf.Tensor:
    """The prefix, once what its index says is known to be true of its files."""
    checked = checkpoint_ops.check(prefix, checksums=False)
    with tf.control_dependencies([] if checked is None else [checked]):
        return tf.identity(prefix)


class SavedStrings:
    """The rows of a table, read from a checkpoint and checked.

    Args:
      table: where the rows go.
      prefix: what `check_sizes` gives.
      path: the table's in the checkpoint.

    Raises:
      tf.errors.OpError: the rows cannot be read, or are not the table's.
    """

    def __init__(
        self, table: StringTable, prefix: tf.Tensor, path: str
    ) -> None:
        self._table = table
        try:
            keys, values = self._read(prefix, path)
        except tf.errors.OpError as error:
            raise type(error)(
                None,
                None,
                f"Table '{table.name}' cannot be restored: '{path}': "
                f"{error.message}",
            ) from error
        fits = checks.run_shape(
            values,
            tf.stack([tf.size(keys), table.dim]),
            f"The saved rows of table '{table.name}' do not fit its width "
            f"{table.dim}",
        )
        distinct = checkpoint_ops.check_distinct(keys, table_name=table.name)
        with tf.control_dependencies(
            fits if distinct is None else [*fits, distinct]
        ):
            self._keys = tf.reshape(keys, [-1])
            self._values = tf.reshape(values, [-1, table.dim])
        # A partitioner may name a shard that is not there.
        table.partition(self._keys)

    def replace(self) -> None:
        """Has the table hold these rows and no others."""
        with tf.control_dependencies([self._keys, self._values]):
            self._table.clear()

        def write(begin: tf.Tensor) -> list[tf.Tensor]:
            end = begin + _ROWS_AT_A_TIME
            self._table.upsert(self._keys[begin:end], self._values[begin:end])
            return [end]

        tf.while_loop(
            lambda begin: begin < tf.size(self._keys),
            write,
            [tf.constant(0)],
            parallel_iterations=1,
        )

    @staticmethod
    def _read(prefix: tf.Tensor, path: str) -> list[tf.Tensor]:
        tensors: list[tf.Tensor] = tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=_tensor_names(path),
            shape_and_slices=["", ""],
            dtypes=[tf.int64, tf.string],
        )
        return tensors
