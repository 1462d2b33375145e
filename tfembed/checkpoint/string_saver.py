"""How TensorFlow's savers write and read tables of strings.

A table is two tensors, `keys` [n] and `values` [n, dim], whatever its number of
shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tfembed.checkpoint import private
from tfembed.ops import checkpoint as checkpoint_ops
from tfembed.tables import StringTable
from tfembed.tables.string_table import StringShard

__all__ = ["register"]


def register() -> None:
    """Registers the saver and the classes that a SavedModel names."""
    private.register_checkpoint_saver(
        "StringTable",
        predicate=lambda x: isinstance(x, StringTable) and x.saveable is None,
        save_fn=_save,
        restore_fn=_restore,
    )
    private.register_serializable("StringTable", StringTable)
    private.register_serializable("StringShard", StringShard)


def _tensor_names(paths: Sequence[str]) -> list[str]:
    return [
        f"{path}/.ATTRIBUTES/{tensor}"
        for path in paths
        for tensor in ("keys", "values")
    ]


def _save(
    trackables: Mapping[str, StringTable], file_prefix: tf.Tensor
) -> tf.Tensor:
    names = _tensor_names(list(trackables))
    done = tf.raw_ops.SaveV2(
        prefix=file_prefix,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[x for table in trackables.values() for x in table.export()],
    )
    with tf.control_dependencies([] if done is None else [done]):
        return tf.identity(file_prefix)


def _read(prefix: tf.Tensor, names: Sequence[str]) -> list[tf.Tensor]:
    """The tensors of a checkpoint, once its sizes are known to be true."""
    checked = checkpoint_ops.check(prefix, checksums=False)
    with tf.control_dependencies([] if checked is None else [checked]):
        tensors: list[tf.Tensor] = tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            dtypes=[tf.int64, tf.string] * (len(names) // 2),
        )
    return tensors


def _restore(
    trackables: Mapping[str, StringTable], merged_prefix: tf.Tensor
) -> None:
    tensors = _read(merged_prefix, _tensor_names(list(trackables)))
    tables = list(trackables.values())
    saved = list(zip(tables, tensors[::2], tensors[1::2], strict=True))
    checks = [
        tf.debugging.assert_equal(
            tf.shape(values),
            tf.stack([tf.size(keys), table.dim]),
            f"The saved rows of table '{table.name}' do not fit its width "
            f"{table.dim}",
        )
        for table, keys, values in saved
    ]
    with tf.control_dependencies([c for c in checks if c is not None]):
        for table, keys, values in saved:
            table.clear()
            table.upsert(
                tf.reshape(keys, [-1]), tf.reshape(values, [-1, table.dim])
            )
