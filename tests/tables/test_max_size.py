"""Hash tables of bounded size."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

from tables.sgd_tables import contents
from tfembed import dynamic_embedding, errors, optimizers, policies
from tfembed.tables import HashTable

SHARDS = pytest.mark.parametrize("shards", [1, 3])
POLICIES = pytest.mark.parametrize(
    "policy",
    [
        policies.LeastRecent(),
        policies.LeastRecent(clock="seconds"),
        policies.LeastFrequent(),
        policies.SmallestNorm(),
    ],
    ids=lambda policy: policy.policy_text(),
)
InvalidArgument = tf.errors.InvalidArgumentError


def bounded(max_size, shards=1, policy=None, **options):
    table = HashTable(
        2,
        name="t",
        devices=["/CPU:0"] * shards,
        eviction=policy or policies.LeastRecent(),
        max_size=max_size,
        **options,
    )
    table.attach(optimizers.SGD(1.0))
    return table


def rows_of(keys):
    return np.repeat(np.asarray(keys, np.float32)[:, None], 2, 1)


def train(table, keys):
    keys = tf.convert_to_tensor(keys, tf.int64)
    table.apply_gradients(keys, -tf.ones([*keys.shape, 2]))


@SHARDS
@POLICIES
def test_the_bound_holds_and_the_batch_stays(shards, policy):
    table = bounded(100, shards, policy)
    random = np.random.default_rng(1)
    rows, evicted = {}, 0
    for i in range(40):
        batch = random.integers(0, 300, 30)
        before = contents(table)
        if i % 2:
            train(table, batch)
            for key in set(batch.tolist()):
                count = np.count_nonzero(batch == key)
                rows[key] = before.get(key, 0.0) + count
        else:
            table.upsert(batch, rows_of(batch))
            rows.update({key: float(key) for key in batch.tolist()})

        after = contents(table)

        assert len(after) <= 100
        assert after.keys() >= set(batch.tolist())
        assert after == {key: rows[key] for key in after}
        assert after.keys() <= before.keys() | set(batch.tolist())
        evicted += len(before.keys() - after.keys())
    assert table.stats().evicted == evicted > 0
    assert table.max_size == 100


@SHARDS
@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_a_batch_that_cannot_fit_is_refused_before_any_change(
    shards, in_function, trained
):
    table = bounded(10, shards)
    table.upsert(range(4), rows_of(range(4)))
    before = contents(table)
    # One key too many for the last shard.
    keys = np.arange(4 if shards == 3 else 11) * shards + shards - 1

    def write():
        if trained:
            train(table, keys)
        else:
            table.upsert(keys, rows_of(keys))

    write = tf.function(write) if in_function else write
    with pytest.raises(InvalidArgument, match="distinct keys"):
        write()

    assert contents(table) == before


@SHARDS
@pytest.mark.parametrize("accumulate", [True, False])
def test_ids_whose_gradient_is_skipped_evict_nothing(shards, accumulate):
    table = HashTable(
        2,
        name="t",
        devices=["/CPU:0"] * shards,
        eviction=policies.LeastRecent(),
        max_size=12,
    )
    table.attach(optimizers.Adagrad(1.0, use_gradient_accumulation=accumulate))
    table.upsert(range(12), rows_of(range(12)))
    before = contents(table)
    keys = tf.range(100, 112, dtype=tf.int64)

    table.apply_gradients(keys, tf.fill([12, 2], np.nan))

    assert contents(table) == before
    assert table.stats().evicted == 0


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "int8", "int32", "int64"]
)
def test_rows_of_any_dtype_go_by_their_norm(dtype):
    table = HashTable(
        2,
        name="t",
        value_dtype=dtype,
        eviction=policies.SmallestNorm(),
        max_size=3,
    )
    table.upsert([1, 2, 3], tf.cast([[-3, 4], [1, 1], [0, 5]], dtype))
    table.upsert([4], tf.cast([[-2, 0]], dtype))
    assert sorted(table.keys().numpy()) == [1, 3, 4]
    gone = table.evict(1)
    assert len(gone.keys) == 2
    assert table.keys().numpy()[0] in (1, 3)


def test_slots_begin_anew_when_a_key_comes_back():
    table = HashTable(1, name="t", eviction=policies.LeastRecent(), max_size=2)
    table.attach(optimizers.Adagrad(1.0, initial_accumulator_value=0.5))
    for keys in ([1], [1], [2], [3], [1]):
        keys = tf.constant(keys, tf.int64)
        table.apply_gradients(keys, tf.ones([1, 1]))

    keys, slots = table.export_slots()
    found = dict(
        zip(keys.numpy(), slots["accumulators"].numpy()[:, 0], strict=True)
    )
    assert found == {3: 1.5, 1: 1.5}


def test_keys_that_are_not_admitted_evict_nothing():
    table = bounded(5, admission=policies.CountAdmission(2))
    table.upsert(range(5), rows_of(range(5)))

    train(table, [10, 11])
    assert sorted(contents(table)) == [0, 1, 2, 3, 4]
    train(table, [10, 11])
    assert contents(table).keys() >= {10, 11}
    assert int(table.size()) == 5


@SHARDS
def test_a_larger_checkpoint_is_cut_to_the_bound(tmp_path, shards):
    large = HashTable(2, name="t", eviction=policies.LeastRecent())
    large.upsert(range(1000), rows_of(range(1000)))
    saved = tf.train.Checkpoint(t=large).save(tmp_path / "c")

    table = bounded(60, shards)
    tf.train.Checkpoint(t=table).restore(saved)

    found = contents(table)
    assert len(found) == 60
    assert found == {key: float(key) for key in found}


def test_the_bound_holds_under_concurrent_inserts():
    table = bounded(200, 2)
    failures = []

    def work(seed):
        random = np.random.default_rng(seed)
        try:
            for _ in range(30):
                keys = random.integers(0, 1000, 60)
                table.upsert(keys, rows_of(keys))
                train(table, random.integers(0, 1000, 60))
                assert int(table.size()) <= 200
                table.lookup(keys)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures
    assert int(table.size()) <= 200


@pytest.mark.parametrize("max_size", [0, 1, -3, 2.5, True, "9"])
def test_a_bound_that_is_not_allowed_is_refused(max_size):
    with pytest.raises(ValueError, match="`max_size`"):
        bounded(max_size, shards=2)


def test_a_bound_needs_a_policy():
    with pytest.raises(ValueError, match="needs an `eviction` policy"):
        HashTable(2, name="t", max_size=10)


def test_a_bound_with_a_bloom_filter_is_refused():
    admission = policies.BloomAdmission(2, capacity=100)
    with pytest.raises(errors.UnsupportedError, match="CountAdmission"):
        bounded(10, admission=admission)


def test_updates_that_are_not_fused_change_no_table_if_one_has_no_room():
    wide, narrow = (
        dynamic_embedding.Variable(
            dim=1,
            name=str(size),
            max_size=size,
            eviction=policies.LeastRecent(),
        )
        for size in (100, 2)
    )
    optimizer = dynamic_embedding.DynamicEmbeddingOptimizer(
        tf.keras.optimizers.RMSprop(0.1)
    )
    gradient = tf.IndexedSlices(
        tf.ones([3, 1]), tf.constant([1, 2, 3], tf.int64)
    )
    with pytest.raises(InvalidArgument, match="than it may hold"):
        optimizer.apply_gradients([(gradient, wide), (gradient, narrow)])
    assert wide.size() == narrow.size() == 0


def test_trained_rows_that_one_shard_cannot_hold_change_no_shard():
    table = HashTable(
        2,
        name="t",
        devices=["/CPU:0"] * 2,
        eviction=policies.LeastRecent(),
        max_size=4,
    )
    keys = tf.constant([0, 1, 3, 5], tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_size"):
        table.write_trained(keys, tf.ones([4, 2]))
    assert int(table.size()) == 0
