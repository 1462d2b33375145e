"""The notes of eviction policies on rows, in checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from checkpoint.table_files import damage, restore, save
from tfembed import policies
from tfembed.tables import HashTable

SHARDS = pytest.mark.parametrize("shards", [(1, 1), (1, 3), (3, 2)])


def table_of(eviction, shards=1, **options):
    return HashTable(
        2,
        name="t",
        initializer=0.0,
        devices=["/CPU:0"] * shards,
        eviction=eviction,
        **options,
    )


def write(table, *batches):
    for keys in batches:
        keys = tf.constant(keys, tf.int64)
        table.upsert(keys, tf.ones([keys.shape[0], 2]))


def worth(table):
    keys, worths = table.worth()
    return dict(zip(keys.numpy().tolist(), worths.numpy(), strict=True))


@SHARDS
def test_a_row_stays_as_old_as_it_was_saved(tmp_path, shards):
    saved = table_of(policies.LeastRecent(), shards[0])
    write(saved, [0, 1, 2], [1, 2, 3], [2, 1, 0], [3, 2, 1])
    expected = worth(saved)
    path = save(saved, tmp_path)
    restored = table_of(policies.LeastRecent(), shards[1])

    restore(restored, path)

    assert worth(restored) == expected
    write(restored, range(10, 20))
    for key, value in expected.items():
        assert worth(restored)[key] == value - 1


def test_rows_of_a_table_that_has_worked_less_expire_in_time(tmp_path):
    saved = table_of(policies.LeastRecent())
    write(saved, [1], *[[2]] * 30)
    path = save(saved, tmp_path)
    restored = table_of(policies.LeastRecent())

    restore(restored, path)

    assert restored.expire(31).keys.numpy().tolist() == []
    assert restored.expire(30).keys.numpy().tolist() == [1]


@SHARDS
def test_counts_of_writes_go_on(tmp_path, shards):
    saved = table_of(policies.LeastFrequent(), shards[0])
    write(saved, [1, 2], [2], [2, 7])
    path = save(saved, tmp_path)
    restored = table_of(policies.LeastFrequent(), shards[1])

    restore(restored, path)
    write(restored, [7, 1])

    assert worth(restored) == {1: 2, 2: 3, 7: 2}


def test_seconds_are_those_of_the_saved_rows(tmp_path):
    table = table_of(policies.LeastRecent("seconds"))
    write(table, [1])
    path = save(table, tmp_path)
    notes = tf.train.load_checkpoint(path).get_tensor("table/.ATTRIBUTES/notes")
    assert abs(notes[0] - tf.timestamp().numpy()) < 60
    restored = table_of(policies.LeastRecent("seconds"))

    restore(restored, path)

    path = save(restored, tmp_path)
    again = tf.train.load_checkpoint(path).get_tensor("table/.ATTRIBUTES/notes")
    assert again.tolist() == notes.tolist()


@pytest.mark.parametrize("keys", ["strings", "a partitioner"])
def test_rows_that_python_deals_keep_their_notes(tmp_path, keys):
    def last(ids, shards):
        return tf.cast(tf.zeros_like(ids), tf.int32) + shards - 1

    options = (
        {"key_dtype": tf.string} if keys == "strings" else {"partitioner": last}
    )
    tables = [
        table_of(policies.LeastFrequent(), shards, **options)
        for shards in (1, 2)
    ]
    ids = tf.constant(["a", "b"]) if keys == "strings" else tf.range(2)
    ids = ids if keys == "strings" else tf.cast(ids, tf.int64)
    for n in (2, 1, 1):
        tables[0].upsert(ids[:n], tf.ones([n, 2]))

    restore(tables[1], save(tables[0], tmp_path))

    assert worth(tables[1]) == worth(tables[0])
    assert sorted(worth(tables[1]).values()) == [1, 3]


@pytest.mark.parametrize(
    "eviction",
    [None, policies.SmallestNorm(), policies.LeastRecent("seconds")],
)
def test_a_policy_that_notes_something_else_leaves_them(tmp_path, eviction):
    saved = table_of(policies.LeastFrequent())
    write(saved, [1, 2], [2], [2, 7])
    path = save(saved, tmp_path)
    restored = table_of(eviction)

    restore(restored, path)

    keys, _ = restored.export()
    assert sorted(keys.numpy().tolist()) == [1, 2, 7]
    if isinstance(eviction, policies.LeastRecent):
        assert min(worth(restored).values()) > -60


def test_a_checkpoint_without_notes_counts_as_one_write(tmp_path):
    saved = table_of(None)
    write(saved, [1, 2], [2])
    path = save(saved, tmp_path)
    restored = table_of(policies.LeastFrequent())

    restore(restored, path)

    assert worth(restored) == {1: 1, 2: 1}


def test_an_empty_table_has_none(tmp_path):
    path = save(table_of(policies.LeastRecent()), tmp_path)
    restored = table_of(policies.LeastRecent())
    write(restored, [5])

    restore(restored, path)

    assert worth(restored) == {}


def test_a_bounded_table_keeps_the_best_of_what_it_restores(tmp_path):
    saved = table_of(policies.LeastFrequent())
    write(saved, range(8), *[range(4)] * 20)
    path = save(saved, tmp_path)
    restored = table_of(policies.LeastFrequent(), max_size=8)

    restore(restored, path)
    write(restored, range(100, 104))

    keys = set(worth(restored))
    assert set(range(4)) < keys
    assert set(range(100, 104)) < keys


def test_damaged_notes_are_found_before_anything_changes(tmp_path):
    table = table_of(policies.LeastFrequent())
    write(table, np.arange(500))
    path = save(table, tmp_path)
    damage(path, np.ones(500, np.int64))
    write(table, [1000])

    with pytest.raises(tf.errors.DataLossError, match="notes"):
        restore(table, path)

    assert len(worth(table)) == 501
