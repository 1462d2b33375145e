"""The counts of `HashTable.stats`, and its scalars for TensorBoard."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.ops import FeaturePlan, feature_ids, grouped_lookup
from tfembed.tables import HashTable

SHARDS = pytest.mark.parametrize("shards", [1, 3])


def table_of(shards=1, dim=4):
    return HashTable(dim, name="t", devices=["/CPU:0"] * shards)


@SHARDS
def test_hits_and_misses_are_counted(shards):
    table = table_of(shards)
    table.upsert([1, 2, 3], np.ones([3, 4]))

    table.lookup([[1, 1], [2, 9]])
    table.lookup([])
    table.contains([1])

    stats = table.stats()
    assert (stats.hits, stats.misses) == (3, 1)
    assert stats.hit_rate == 0.75


def test_grouped_lookups_count_too():
    table = table_of()
    table.upsert([1, 2], np.ones([2, 4]))

    grouped_lookup(
        [table.handle],
        [4],
        [feature_ids(tf.constant([1, 2, 3, 3], tf.int64))],
        [FeaturePlan(table=0, combiner="sum")],
    )

    stats = table.stats()
    assert stats.hits >= 2
    assert stats.misses >= 1
    assert stats.hits + stats.misses <= 4


@SHARDS
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_rows_with_a_nan_are_counted_and_kept(shards, dtype):
    table = HashTable(
        2, name="t", value_dtype=dtype, devices=["/CPU:0"] * shards
    )
    rows = [[1.0, np.nan], [np.inf, 1.0], [np.nan, np.nan], [0.0, 0.0]]

    table.upsert(range(4), tf.constant(rows, dtype))

    assert table.stats().nan_rows == 2
    found = tf.cast(table.lookup(range(4))[0], tf.float64)
    np.testing.assert_array_equal(found, rows)


def test_stats_are_asked_for_in_eager_mode():
    table = table_of()
    with pytest.raises(errors.UnsupportedError, match="eager mode"):
        tf.function(lambda: table.stats().size)()


def test_integers_are_never_nan():
    table = HashTable(2, name="t", value_dtype="int32")
    table.upsert([1, 2], tf.constant([[-1, 0x7FFFFFFF], [0, 1]]))
    assert table.stats().nan_rows == 0


@SHARDS
def test_bytes_are_told_by_kind(shards):
    table = table_of(shards)
    table.attach(optimizers.Adam(0.1))
    table.upsert(range(1000), np.ones([1000, 4]))

    stats = table.stats()

    assert stats.value_bytes == 1000 * 16
    assert stats.slot_bytes == 1000 * 32
    assert stats.meta_bytes == stats.policy_bytes == 0
    assert stats.row_bytes >= stats.value_bytes + stats.slot_bytes


@SHARDS
def test_probes_and_load_describe_the_indexes(shards):
    table = table_of(shards)
    empty = table.stats()
    keys = np.random.default_rng(1).integers(-(2**62), 2**62, 100_000)
    table.upsert(keys, np.ones([len(keys), 4], np.float32))

    stats = table.stats()

    assert empty.load_factor == empty.hit_rate == 0
    assert empty.mean_probe == 1
    assert 0.4 < stats.load_factor <= 0.74
    assert stats.size <= stats.capacity <= stats.places
    assert 1 <= stats.mean_probe < 1.3
    assert 2 <= stats.longest_probe < 50


def written(directory):
    found = {}
    for path in sorted(directory.iterdir()):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found[value.tag, event.step] = float(
                    tf.make_ndarray(value.tensor)
                )
    return found


@pytest.mark.parametrize("given", [False, True])
def test_scalars_are_written_by_one_call(tmp_path, given):
    pytest.importorskip(
        "tensorboard", reason="TensorFlow 2.21 does not bring TensorBoard"
    )
    table = table_of()
    table.upsert([1, 2], np.ones([2, 4]))
    stats = table.stats()
    writer = tf.summary.create_file_writer(str(tmp_path))

    if given:
        stats.write_scalars(7, prefix="users", writer=writer)
    else:
        with writer.as_default():
            stats.write_scalars(7, prefix="users")
    writer.close()

    scalars = written(tmp_path)
    assert scalars["users/size", 7] == 2
    assert scalars["users/load_factor", 7] == pytest.approx(stats.load_factor)
    assert len(scalars) == len(stats.scalars())
