"""A table that is spread over replicas looks, and is saved, like one tensor."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import errors
from tfembed.embedding.xla.sharded_table import ShardedTable

ROWS = np.arange(14, dtype=np.float32).reshape(7, 2)


def _tables(replicas):
    """Two tables of one stack; the second has seven rows."""
    rows = -(-7 // replicas)
    shards = [tf.Variable(tf.zeros([3 + rows, 2])) for _ in range(replicas)]
    first = ShardedTable(shards, 0, (3 * replicas, 2), "first")
    second = ShardedTable(shards, 3, (7, 2), "second")
    return shards, first, second


@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
def test_row_r_of_a_replica_is_row_r_times_replicas_plus_replica(replicas):
    shards, first, second = _tables(replicas)

    second.assign(ROWS)

    for i, row in enumerate(ROWS):
        found = shards[i % replicas][3 + i // replicas]
        np.testing.assert_array_equal(found, row)
    np.testing.assert_array_equal(second.numpy(), ROWS)
    np.testing.assert_array_equal(tf.reduce_sum(second), ROWS.sum())
    assert not np.any(first.numpy())


@pytest.mark.parametrize("replicas", [1, 4])
def test_a_checkpoint_is_a_variables_and_restores_into_other_counts(
    tmp_path, replicas
):
    _, _, saved = _tables(4)
    saved.assign(ROWS)
    path = tf.train.Checkpoint(table=saved).write(str(tmp_path / "a"))
    variable = tf.Variable(tf.zeros([7, 2]))
    _, _, restored = _tables(replicas)

    tf.train.Checkpoint(table=variable).read(path).assert_consumed()
    tf.train.Checkpoint(table=restored).read(path).assert_consumed()

    np.testing.assert_array_equal(variable, ROWS)
    np.testing.assert_array_equal(restored.numpy(), ROWS)


def test_other_shapes_are_refused_before_anything_is_changed(tmp_path):
    shards, _, table = _tables(2)
    path = tf.train.Checkpoint(table=tf.Variable(tf.ones([8, 2]))).write(
        str(tmp_path / "a")
    )

    with pytest.raises(errors.ArgumentError, match=r"second takes \(7, 2\)"):
        table.assign(np.ones((8, 2)))
    with pytest.raises(errors.CheckpointError, match=r"\(8, 2\) for second"):
        tf.train.Checkpoint(table=table).read(path)
    assert not any(np.any(shard.numpy()) for shard in shards)
