"""Keys that wait for admission, and how often each was seen, in checkpoints."""

from __future__ import annotations

import collections
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from checkpoint.table_files import damage, restore, save
from tables.sgd_tables import batches, contents, table_of
from tfembed import checkpoint, errors, optimizers, policies

SHARDS = pytest.mark.parametrize("shards", [(1, 1), (1, 3), (3, 2)])
SEEN = policies.CountAdmission(3)


def train(table, keys):
    keys = tf.convert_to_tensor(keys, table.key_dtype)
    table.apply_gradients(keys, tf.ones([*keys.shape, table.dim]))


def waiting(path, tensor="keys"):
    name = f"table/.ATTRIBUTES/waiting/{tensor}"
    return tf.train.load_checkpoint(path).get_tensor(name)


@SHARDS
@pytest.mark.parametrize("dtype", ["int64", "int32", "string"])
def test_counts_go_on_after_a_restore(tmp_path, shards, dtype):
    def key(number):
        return str(number) if dtype == "string" else number

    def table(n):
        return table_of(n, key_dtype=dtype, admission=SEEN)

    saved, counts = table(shards[0]), collections.Counter()
    for batch in batches(1, steps=4, keys=60):
        train(saved, [key(k) for k in batch.tolist()])
        counts.update(set(batch.tolist()))
    assert {1, 2} <= set(counts.values())
    path = save(saved, tmp_path)
    restored = table(shards[1])

    restore(restored, path)

    assert contents(restored) == contents(saved)
    train(restored, [key(k) for k in range(60)])
    counts.update(range(60))
    assert restored.contains([key(k) for k in range(60)]).numpy().tolist() == [
        counts[k] >= 3 for k in range(60)
    ]


def test_a_partitioner_deals_waiting_keys(tmp_path):
    saved = table_of(3, admission=SEEN)
    train(saved, [1, 2])
    train(saved, [2])
    path = save(saved, tmp_path)
    restored = table_of(
        2, admission=SEEN, partitioner=lambda keys, n: tf.zeros_like(keys)
    )

    restore(restored, path)
    train(restored, [1, 2])

    assert list(contents(restored)) == [2]


def test_keys_that_do_not_wait_are_not_saved_as_waiting(tmp_path):
    table = table_of(2, admission=SEEN)
    train(table, [1, 2, 3, 4])
    train(table, [1, 2])
    train(table, [1])
    table.upsert(tf.constant([3], tf.int64), tf.ones([1, 2]))

    path = save(table, tmp_path)

    found = zip(waiting(path), waiting(path, "seen"), strict=True)
    assert dict(found) == {2: 2, 4: 1}


@pytest.mark.parametrize("admission", [None, SEEN])
def test_a_table_where_nothing_waits_has_no_such_tensors(tmp_path, admission):
    table = table_of(admission=admission)
    for _ in range(3):
        train(table, [1, 2])

    path = save(table, tmp_path)

    names = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    assert not [name for name in names if "waiting" in name]
    train(table, [5])
    restore(table, path)
    assert sorted(contents(table)) == [1, 2]
    for _ in range(2):
        train(table, [5])
    assert admission is None or 5 not in contents(table), "It begins anew."


@pytest.mark.parametrize(
    ("admission", "admitted"),
    [
        (None, [1, 2, 3]),
        (policies.CountAdmission(2), [1, 2]),
        (policies.CountAdmission(5), []),
        (policies.BloomAdmission(3, capacity=100), [2]),
    ],
)
def test_another_admission_judges_by_the_saved_counts(
    tmp_path, admission, admitted
):
    saved = table_of(admission=SEEN)
    train(saved, [1, 2])
    train(saved, [2])
    restored = table_of(admission=admission)

    restore(restored, save(saved, tmp_path))
    train(restored, [1, 2, 3])

    assert sorted(contents(restored)) == admitted


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["int64", "string"])
def test_a_bloom_filter_goes_on(tmp_path, shards, dtype):
    def table():
        admission = policies.BloomAdmission(3, capacity=1000)
        return table_of(shards, key_dtype=dtype, admission=admission)

    keys = [str(i) if dtype == "string" else i for i in range(200)]
    saved, restored = table(), table()
    train(saved, keys)
    train(saved, keys[:100])
    assert contents(saved) == {}

    restore(restored, save(saved, tmp_path))

    train(restored, keys)
    known = restored.contains(keys).numpy()
    assert known[:100].all()
    assert np.count_nonzero(known[100:]) <= 5, "Some are early, by chance."


@pytest.mark.parametrize(
    ("shards", "options"),
    [
        (2, {"capacity": 100}),
        (1, {"capacity": 200}),
        (1, {"capacity": 100, "error_rate": 0.001}),
    ],
)
def test_bloom_counters_of_another_shape_begin_anew(tmp_path, shards, options):
    saved = table_of(admission=policies.BloomAdmission(2, capacity=100))
    train(saved, [1])
    restored = table_of(shards, admission=policies.BloomAdmission(2, **options))

    restore(restored, save(saved, tmp_path))

    train(restored, [1])
    assert contents(restored) == {}
    train(restored, [1])
    assert list(contents(restored)) == [1]


def test_the_counters_of_a_million_keys_are_read_once(tmp_path):
    def bytes_read():
        fields = pathlib.Path("/proc/self/io").read_text().split()
        return int(fields[fields.index("rchar:") + 1])

    admission = policies.BloomAdmission(2, capacity=10**6)
    path = save(table_of(admission=admission), tmp_path)
    size = waiting(path, "bloom_7").size
    table = table_of(admission=admission)
    before = bytes_read()

    restore(table, path)

    assert size < bytes_read() - before < 1.5 * size


def test_damaged_bloom_counters_are_found_before_anything_changes(tmp_path):
    table = table_of(admission=policies.BloomAdmission(2, capacity=20_000))
    train(table, np.arange(20_000))
    path = save(table, tmp_path)
    counters = waiting(path, "bloom_7")
    damage(path, counters[5])
    train(table, [1])
    rows = contents(table)

    with pytest.raises(tf.errors.DataLossError, match="waiting/bloom_7"):
        restore(table, path)

    assert contents(table) == rows
    assert 1 in rows, "Others came early, by chance."


def test_strings_that_wait_are_not_swept_away(tmp_path):
    table = table_of(key_dtype="string", admission=SEEN)
    names = [f"name {i}" for i in range(20_000)]
    for part in np.split(np.array(names), 10):
        train(table, part)

    path = save(table, tmp_path)

    assert sorted(name.decode() for name in waiting(path)) == sorted(names)


def test_more_than_a_chunk_of_keys_may_wait(tmp_path):
    keys = np.arange(1_200_000) * 3
    saved, restored = (
        table_of(n, dim=1, admission=policies.CountAdmission(2)) for n in (2, 3)
    )
    train(saved, keys)

    restore(restored, save(saved, tmp_path))
    train(restored, keys)

    assert int(restored.size()) == len(keys)


def test_damage_is_found_before_anything_changes(tmp_path):
    table = table_of(admission=SEEN)
    train(table, np.arange(500))
    path = save(table, tmp_path)
    damage(path, np.ones(500, np.int32))
    train(table, np.arange(500))

    with pytest.raises(tf.errors.DataLossError, match="waiting/seen"):
        restore(table, path)

    train(table, np.arange(500))
    assert int(table.size()) == 500


def test_a_model_that_serves_takes_none(tmp_path):
    module = tf.Module()
    module.table = table_of(admission=SEEN)
    train(module.table, [1, 2, 3])
    module.find = tf.function(
        lambda keys: module.table.lookup(keys)[0],
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )

    tf.saved_model.save(module, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))

    assert loaded.find(tf.constant([1], tf.int64)).numpy().tolist() == [
        [0.5] * 2
    ]
    loaded.table.attach(optimizers.SGD(1.0))
    for _ in range(2):
        train(loaded.table, [1])
    assert contents(loaded.table) == {}


def test_a_model_that_serves_does_not_read_them(tmp_path):
    module = tf.Module()
    module.table = table_of(admission=SEEN)
    train(module.table, np.arange(500))
    tf.saved_model.save(module, str(tmp_path / "model"))
    files = str(tmp_path / "model" / "variables" / "variables")
    damage(files, np.ones(500, np.int32))

    loaded = tf.saved_model.load(str(tmp_path / "model"))

    assert contents(loaded.table) == {}
    with pytest.raises(errors.CheckpointError, match="waiting/seen"):
        checkpoint.verify(files)
