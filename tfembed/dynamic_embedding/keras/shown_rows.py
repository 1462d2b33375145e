"""Some rows of a table, in place of a weight that has none, to be shown."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed.ops import table as table_ops
from tfembed.tables import HashTable

__all__ = ["some_rows"]

_MOST_ROWS = 10_000


def some_rows(table: Any) -> tf.Tensor:
    """Some rows as if picked by chance, float32 [n, dim]; n is at most 10,000.

    These lookups do not count as hits.

    Args:
      table: a HashTable, or a variable of all rows; of strings none are shown.
    """
    if isinstance(table, HashTable):
        keys = [
            table_ops.survey(handle, most, key_dtype=table.key_dtype).keys
            for handle, most in zip(table.handles, _shares(table), strict=True)
        ]
        return table.lookup_trained(tf.concat(keys, 0))[:, : table.dim]
    if hasattr(table, "handles"):
        return tf.zeros([0, table.dim])
    rows = int(table.shape[0])
    chosen = np.linspace(0, rows, min(rows, _MOST_ROWS), endpoint=False)
    places = tf.constant(chosen.astype(np.int64))
    gather = getattr(table, "gather", None)
    found = tf.gather(table, places) if gather is None else gather(places)
    return tf.cast(found, tf.float32)


def _shares(table: HashTable) -> list[int]:
    """Returns the rows to show of each shard, in proportion to what it has."""
    sizes = [int(table.size(shard)) for shard in range(len(table.shards))]
    if sum(sizes) <= _MOST_ROWS:
        return [table_ops.ALL_ROWS] * len(sizes)
    return [math.ceil(_MOST_ROWS * size / sum(sizes)) for size in sizes]
