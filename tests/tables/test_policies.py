"""Which rows go, beside a dict that follows the same rules."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tables.sgd_tables import (
    IN_FUNCTION,
    SHARDS,
    batches,
    contents,
    table_of,
    train,
)
from tfembed import errors, optimizers, policies
from tfembed.tables import HashTable


def noted(table, steps):
    """Trains, and tells each key's last step and number of steps."""
    last, count = {}, {}
    for step, batch in enumerate(steps):
        train(table, batch)
        for key in set(batch.tolist()):
            last[key] = step
            count[key] = count.get(key, 0) + 1
    return last, count


@SHARDS
@IN_FUNCTION
@pytest.mark.parametrize("keep", [0, 20, 1000])
@pytest.mark.parametrize(
    "policy", [policies.LeastRecent(), policies.LeastFrequent()]
)
def test_evict_keeps_the_best_rows(shards, in_function, keep, policy):
    table = table_of(shards, eviction=policy)
    last, count = noted(table, batches(3, keys=60))
    worth = last if isinstance(policy, policies.LeastRecent) else count
    before = contents(table)

    def evict():
        return table.evict(keep, return_values=True)

    removed = (tf.function(evict) if in_function else evict)()

    kept = contents(table)
    gone = removed.keys.numpy().tolist()
    assert len(kept) == min(keep, len(before))
    assert kept.keys() | set(gone) == before.keys()
    assert not kept.keys() & set(gone)
    if kept and gone:
        assert min(map(worth.get, kept)) >= max(map(worth.get, gone))
    assert removed.values[:, 0].numpy().tolist() == [before[k] for k in gone]
    assert table.stats().evicted == len(gone)


@SHARDS
@IN_FUNCTION
@pytest.mark.parametrize("limit", [1, 4, 29])
def test_rows_expire_that_were_not_touched_for_some_steps(
    shards, in_function, limit
):
    table = table_of(shards, eviction=policies.LeastRecent())
    steps = batches(5, keys=200)
    last, _ = noted(table, steps)

    def expire():
        return table.expire(limit)

    removed = (tf.function(expire) if in_function else expire)()

    idle = {k: len(steps) - 1 - step for k, step in last.items()}
    expected = {k for k, steps in idle.items() if steps >= limit}
    assert set(removed.keys.numpy().tolist()) == expected
    assert removed.values is None
    assert contents(table).keys() == last.keys() - expected


@SHARDS
def test_rows_expire_that_were_seldom_touched(shards):
    table = table_of(shards, eviction=policies.LeastFrequent())
    _, count = noted(table, batches(6, keys=100))

    table.expire(4)

    assert contents(table).keys() == {k for k, n in count.items() if n >= 4}


@SHARDS
@IN_FUNCTION
def test_rows_expire_by_themselves(shards, in_function):
    expiry = policies.Expiry(limit=3, every=4)
    table = table_of(shards, eviction=policies.LeastRecent(), expiry=expiry)

    def step(keys):
        train(table, keys)

    step = tf.function(step) if in_function else step
    last = {}
    for i, batch in enumerate(batches(8, keys=100)):
        step(tf.constant(batch))
        last.update(dict.fromkeys(batch.tolist(), i))
        if (i + 1) % 4 == 0:
            last = {k: n for k, n in last.items() if i - n < 3}
        assert contents(table).keys() == last.keys()


def test_rows_expire_after_seconds():
    table = table_of(eviction=policies.LeastRecent(clock="seconds"))
    table.upsert(range(5), np.ones([5, 2]))

    assert table.expire(3600).keys.shape == [0]
    assert table.expire(0).keys.shape == [5]


@SHARDS
def test_rows_of_small_norm_go_without_any_notes(shards):
    table = table_of(shards)
    rows = np.array([[3.0, 4.0], [0.1, 0.0], [np.nan, 9.0], [0.0, -2.0]])
    table.upsert(range(4), rows)

    table.expire(1.0, policy=policies.SmallestNorm())
    assert contents(table).keys() == {0, 3}

    table.evict(1, policy=policies.SmallestNorm())
    assert contents(table).keys() == {0}


def test_slots_go_and_come_with_their_rows():
    table = HashTable(2, name="t", eviction=policies.LeastFrequent())
    table.upsert([9], [[1.0, 1.0]])
    table.attach(optimizers.Adagrad(1.0, initial_accumulator_value=0.5))
    for batch in ([1, 2], [2, 3], [2, 3]):
        train(table, batch)

    table.evict(1)

    keys, slots = table.export_slots()
    assert keys.numpy().tolist() == [2]
    assert slots["accumulators"].numpy().tolist() == [[3.5, 3.5]]
    train(table, [3])
    keys, slots = table.export_slots()
    order = np.argsort(keys)
    assert slots["accumulators"].numpy()[order, 0].tolist() == [3.5, 1.5]


def test_policies_cost_memory_where_they_are_and_nowhere_else():
    keys = np.arange(50_000)
    sizes = {}
    for policy in (None, policies.SmallestNorm(), policies.LeastRecent()):
        table = table_of(eviction=policy)
        table.upsert(keys, np.ones([len(keys), 2], np.float32))
        sizes[policy] = table.stats()

    plain, norm, recent = sizes.values()
    assert plain.meta_bytes == norm.meta_bytes == 0
    assert plain.row_bytes == norm.row_bytes
    assert recent.meta_bytes == 4 * len(keys)


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
@pytest.mark.parametrize(
    ("keys", "values"), [(tf.int64, tf.int8), (tf.int32, tf.int32)]
)
def test_one_word_of_notes_leaves_other_dtypes_alone(shape, keys, values):
    table = HashTable(
        3,
        name="t",
        key_dtype=keys,
        value_dtype=values,
        eviction=policies.LeastFrequent(),
        devices=["/CPU:0"] * 2,
    )
    keys = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    rows = np.arange(keys.size * 3).reshape(*shape, 3)

    table.upsert(keys, rows)
    table.upsert(keys, rows)

    np.testing.assert_array_equal(table.lookup(keys)[0], rows)
    assert table.expire(2).keys.shape == [0]
    removed = table.expire(3)
    assert removed.keys.dtype == table.key_dtype
    assert sorted(removed.keys.numpy()) == sorted(keys.ravel())


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda t: t.evict(-1), ValueError, "`keep`"),
        (lambda t: t.evict(1.0), TypeError, "`keep`"),
        (lambda t: t.evict(True), TypeError, "`keep`"),
        (lambda t: t.expire(-1), ValueError, "`limit`"),
        (lambda t: t.expire(float("nan")), ValueError, "`limit`"),
        (lambda t: t.expire("1"), ValueError, "`limit`"),
        (
            lambda t: t.evict(1, policy=policies.LeastFrequent()),
            ValueError,
            "keep no notes",
        ),
        (lambda t: table_of().evict(1), ValueError, "no eviction policy"),
        (lambda t: table_of(eviction="lru"), TypeError, "`eviction`"),
        (
            lambda t: table_of(expiry=policies.Expiry(1, every=1)),
            ValueError,
            "`expiry`",
        ),
        (lambda t: table_of(admission="3"), TypeError, "`admission`"),
        (
            lambda t: table_of(admission=policies.LeastRecent()),
            TypeError,
            "`admission`",
        ),
    ],
)
def test_what_is_not_allowed_is_refused_before_any_change(call, error, text):
    table = table_of(eviction=policies.LeastRecent())
    train(table, range(5))

    with pytest.raises(error, match=text) as caught:
        call(table)

    assert isinstance(caught.value, errors.TfembedError)
    assert int(table.size()) == 5
