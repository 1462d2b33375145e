"""A restore into a smaller `max_size` keeps the rows that `evict` would keep.

Kind: what a table of bounded size takes over was cut by a sample, or by its
order in the file, without a word. Looked for in: checkpoints by op and by
partitioner, functions, Keras' files of both layers, raw files (test_row_files),
SavedModels' files, kept weights (checkpoints, too). Savers of graphs,
`HashTable.replace` and warm starts refuse rows that do not fit.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from checkpoint.table_files import restore, save
from tfembed import policies
from tfembed.checkpoint import table_saver
from tfembed.keras.layers import Embedding
from tfembed.tables import HashTable

POLICIES = pytest.mark.parametrize(
    "policy",
    [
        policies.LeastRecent(),
        policies.LeastFrequent(),
        policies.SmallestNorm(),
    ],
    ids=lambda policy: type(policy).__name__,
)
# The worth of KEYS rises with their position.
KEYS = np.random.default_rng(5).permutation(
    np.concatenate([np.arange(-40, 40), 2**33 + 7 * np.arange(20)])
)


def table_of(policy, shards=1, keys=KEYS, **options):
    return HashTable(
        2,
        name="t",
        initializer=0.0,
        devices=["/CPU:0"] * shards,
        eviction=policy,
        key_dtype=tf.as_dtype("string" if keys.dtype == object else "int64"),
        **options,
    )


def rows_of(first, n):
    return np.repeat(np.arange(first, first + n), 2).reshape(n, 2)


def filled(policy, shards=1, keys=KEYS):
    """A key's row holds its position, which is also how often it is written."""
    table = table_of(policy, shards, keys)
    for i in range(len(keys)):
        table.upsert(tf.constant(keys[i:]), rows_of(i, len(keys) - i))
    return table


def best(table, keys=KEYS):
    """The keys that stay, by position: the last ones of each shard."""
    kept = set()
    parts = table.partition(tf.constant(keys)).split(tf.range(len(keys)))
    for shard, part in zip(table.shards, parts, strict=True):
        kept |= set(part.numpy()[-shard.options.max_size :].tolist())
    return kept


def content(table):
    keys, rows = (x.numpy() for x in table.export())
    return dict(zip(keys.tolist(), rows[:, 0].tolist(), strict=True))


def by_sevens(keys, num_shards):
    return (keys // 7) % num_shards


@POLICIES
@pytest.mark.parametrize("partitioner", [None, by_sevens])
@pytest.mark.parametrize("shards", [(1, 1), (1, 3), (3, 2)])
def test_the_best_rows_of_each_shard_stay(
    policy, shards, partitioner, tmp_path
):
    saved = filled(policy, shards[0])
    path = save(saved, tmp_path)
    table = table_of(policy, shards[1], max_size=50, partitioner=partitioner)

    restore(table, path)

    expected = best(table)
    assert content(table) == {int(KEYS[i]): float(i) for i in expected}
    worth = dict(zip(*(x.numpy().tolist() for x in saved.worth()), strict=True))
    found = dict(zip(*(x.numpy().tolist() for x in table.worth()), strict=True))
    assert found == {key: worth[key] for key in found}
    table.upsert(tf.constant(KEYS[:9]), tf.ones([9, 2]))  # It goes on.
    assert int(table.size()) <= 50


@POLICIES
@pytest.mark.parametrize("shards", [1, 3])
def test_the_best_rows_of_strings_stay(policy, shards, tmp_path):
    keys = np.array([f"key {k}".encode() for k in KEYS], object)
    path = save(filled(policy, keys=keys), tmp_path)
    table = table_of(policy, shards, keys, max_size=50)

    restore(table, path)

    assert content(table) == {keys[i]: float(i) for i in best(table, keys)}


def test_the_best_rows_stay_in_a_function(tmp_path):
    path = tf.constant(save(filled(policies.LeastRecent()), tmp_path))
    table = table_of(
        policies.LeastRecent(), 2, max_size=50, partitioner=by_sevens
    )

    tf.function(lambda: table_saver._restore({"table": table}, path))()

    assert content(table) == {int(KEYS[i]): float(i) for i in best(table)}


def test_of_equal_rows_those_stay_that_evict_keeps(tmp_path):
    saved = table_of(policies.LeastFrequent())
    saved.upsert(tf.constant(KEYS), rows_of(0, 100))
    saved.upsert(tf.constant(KEYS[:10]), rows_of(0, 10))
    path = save(saved, tmp_path)
    table = table_of(policies.LeastFrequent(), max_size=30)

    restore(table, path)

    saved.evict(30)
    assert content(table) == content(saved)


def test_slots_and_halves_stay_with_their_rows(tmp_path):
    """NaN rows go first."""
    options = {"value_dtype": tf.bfloat16, "eviction": policies.SmallestNorm()}
    saved = HashTable(4, name="t", **options)
    keys = tf.range(9, dtype=tf.int64)
    saved.upsert(keys, tf.cast(tf.repeat(keys[:, None], 4, 1), tf.bfloat16))
    saved.upsert([8], tf.fill([1, 4], tf.constant(np.nan, tf.bfloat16)))
    path = save(saved, tmp_path)
    table = HashTable(4, name="t", max_size=5, **options)

    restore(table, path)

    assert sorted(content(table)) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("saved_by", [None, policies.LeastFrequent()])
@pytest.mark.parametrize("partitioner", [None, by_sevens])
def test_rows_without_notes_are_refused_by_number(
    saved_by, partitioner, tmp_path
):
    path = save(filled(saved_by), tmp_path)
    table = table_of(
        policies.LeastRecent(), 2, max_size=50, partitioner=partitioner
    )
    table.upsert([1, 2], tf.ones([2, 2]))

    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"'t'.*100 rows.*at most 25.*'steps_ago'.*max_size",
    ):
        restore(table, path)

    assert content(table) == {1: 1.0, 2: 1.0}


def test_rows_without_notes_that_fit_are_restored(tmp_path):
    path = save(filled(None), tmp_path)
    table = table_of(policies.LeastRecent(), 1, max_size=100)

    restore(table, path)

    assert int(table.size()) == 100


@pytest.mark.parametrize("kind", ["ours", "TFRA's"])
def test_the_best_rows_of_a_keras_file_stay(kind, tmp_path):
    def model_of(max_size=None):
        options = {"eviction": policies.LeastRecent(), "max_size": max_size}
        if kind == "ours":
            layer = Embedding(2, key_dtype="int64", name="e", **options)
        else:
            layer = de.keras.layers.Embedding(2, name="e", **options)
        model = keras.Sequential(
            [keras.Input([1], dtype="int64"), layer], name="m"
        )
        table = layer.table if kind == "ours" else layer.params
        return model, table.table

    model, table = model_of()
    for i in range(100):
        table.upsert(tf.constant(KEYS[i:]), rows_of(i, 100 - i))
    model.save_weights(tmp_path / "m.weights.h5")
    bounded, its_table = model_of(50)

    bounded.load_weights(tmp_path / "m.weights.h5")

    assert content(its_table) == {int(KEYS[i]): i for i in range(50, 100)}
