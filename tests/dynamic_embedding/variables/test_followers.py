"""Status and slots leave with the keys that they belong to, however those go."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import tensorflow as tf

import deleted
import tfembed.dynamic_embedding as de
from tfembed import optimizers, policies

SHARDS = pytest.mark.parametrize("shards", [1, 3])
IN_FUNCTION = pytest.mark.parametrize("in_function", [False, True])
POLICIES = pytest.mark.parametrize(
    "policy", [de.TimestampRestrictPolicy, de.FrequencyRestrictPolicy]
)


def variable(shards=1, policy=de.FrequencyRestrictPolicy, **options):
    return de.Variable(
        dim=2,
        devices=["/CPU:0"] * shards,
        restrict_policy=policy,
        name="followed",
        **options,
    )


def keys_of(v):
    return sorted(v.export()[0].numpy().tolist())


def statuses(v):
    keys, values = (x.numpy() for x in v.restrict_policy.status.export())
    return dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))


def trainer(v, optimizer=None):
    optimizer = de.DynamicEmbeddingOptimizer(optimizer or optimizers.SGD(0.1))

    def step(keys):
        with tf.GradientTape() as tape:
            rows = de.embedding_lookup(v, keys, name="x")
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    return tf.function(step, reduce_retracing=True)


def train(v, *batches):
    step = trainer(v)
    for batch in batches:
        step(tf.constant(batch, tf.int64))


REMOVALS = {
    "remove": lambda v: v.remove(tf.constant([[1, 2], [99, 1]], tf.int64)),
    "clear": lambda v: v.clear(),
    "evict": lambda v: v.table.evict(2),
    "expire": lambda v: v.table.expire(2),
    "restrict": lambda v: v.restrict(2),
}


@SHARDS
@IN_FUNCTION
@POLICIES
@pytest.mark.parametrize("removal", REMOVALS)
def test_status_goes_with_its_keys(shards, in_function, policy, removal):
    v = variable(shards, policy, eviction=policies.LeastFrequent())
    other = variable(shards, policy)
    train(v, [1, 2, 3], [3, 4], [4])
    train(other, [1, 2, 3])

    def remove():
        REMOVALS[removal](v)

    (tf.function(remove) if in_function else remove)()

    assert len(keys_of(v)) < 4
    assert sorted(statuses(v)) == keys_of(v)
    assert keys_of(other) == sorted(statuses(other)) == [1, 2, 3]


def test_status_of_keys_that_expire_by_themselves_goes():
    v = variable(
        eviction=policies.LeastFrequent(), expiry=policies.Expiry(2, every=3)
    )

    train(v, [1, 2], [2], [3])

    assert keys_of(v) == [2]
    assert statuses(v) == {2: 2}


@SHARDS
def test_a_checkpoint_has_no_status_of_keys_that_expired_for_it(
    tmp_path, shards
):
    options = {
        "eviction": policies.LeastFrequent(),
        "expiry": policies.Expiry(2, at_checkpoints=True),
    }
    v, other = variable(shards, **options), variable(**options)
    train(v, [1, 2, 3], [2, 3])

    path = tf.train.Checkpoint(v=v).save(tmp_path / "c")
    tf.train.Checkpoint(v=other).restore(path).assert_existing_objects_matched()

    assert statuses(v) == statuses(other) == {2: 2, 3: 2}
    assert keys_of(v) == keys_of(other) == [2, 3]


@SHARDS
@pytest.mark.parametrize(
    "optimizer",
    [optimizers.SGD(0.1), tf.keras.optimizers.RMSprop(0.1)],
    ids=["fused", "rows"],
)
def test_status_beside_a_bounded_variable_is_bounded(shards, optimizer):
    bound = 64
    v = variable(shards, max_size=bound, eviction=policies.LeastRecent())
    step = trainer(v, optimizer)
    random = np.random.default_rng(3)
    noted = {}
    for _ in range(60):
        before = set(keys_of(v))
        batch = random.integers(0, 2000, 20)
        step(tf.constant(batch))

        # A key that was evicted and came back counts from 1 again.
        for key in set(batch.tolist()):
            noted[key] = noted[key] + 1 if key in before else 1
        found = statuses(v)
        assert len(found) <= bound + bound // 8
        assert {k: found[k] for k in keys_of(v)} == {
            k: noted[k] for k in keys_of(v)
        }


def test_an_upsert_takes_a_key_that_was_evicted_for_new():
    v = variable(max_size=2, eviction=policies.LeastRecent())
    train(v, [1], [1], [2], [3])
    assert keys_of(v) == [2, 3]

    v.upsert(tf.constant([1], tf.int64), tf.ones([1, 2]))

    assert 1 not in statuses(v)


def test_a_batch_that_is_refused_leaves_the_status_alone():
    v = variable(max_size=2, eviction=policies.LeastRecent())
    v.restrict_policy.apply_update(tf.constant([7, 8], tf.int64))

    with pytest.raises(tf.errors.InvalidArgumentError, match="than it may"):
        v.upsert(tf.constant([7, 8, 9], tf.int64), tf.ones([3, 2]))

    assert statuses(v) == {7: 1, 8: 1}


def test_keys_that_are_not_admitted_have_no_status():
    v = variable(admission=policies.CountAdmission(2))

    train(v, [1, 2, 3], [3], [3, 4])

    assert statuses(v) == {3: 2}


def test_status_of_a_variable_without_bound_may_come_first():
    v = variable()
    v.restrict_policy.apply_update(tf.constant([5], tf.int64))
    train(v, [5, 6])

    assert statuses(v) == {5: 2, 6: 1}


@SHARDS
def test_slots_of_ones_own_follow_their_variable_and_no_other(shards):
    v, other = variable(shards), variable(shards)
    slots = {x: de.create_slots(x, 0.0, "m", "own", False) for x in (v, other)}
    keys = tf.range(6, dtype=tf.int64)
    for table in (v, other, *slots.values()):
        table.upsert(keys, tf.ones([6, 2]))

    v.remove(keys[:2])
    v.restrict(3)

    assert keys_of(slots[v]) == keys_of(v)
    assert len(keys_of(v)) == 3
    assert keys_of(slots[other]) == keys_of(other) == list(range(6))


def test_a_graph_of_tensorflow_1_removes_status_too():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        v = variable(2)
        keys = tf.constant([1, 2, 3], tf.int64)
        session.run(v.upsert(keys, tf.ones([3, 2])))
        session.run(v.restrict_policy.apply_update(keys))
        status = v.restrict_policy.status
        session.run(v.remove(keys[:1]))
        assert session.run([v.size(), status.size()]) == [2, 2]
        session.run(v.clear())
        assert session.run([v.size(), status.size()]) == [0, 0]


def test_neither_table_keeps_the_other_alive():
    v = variable(policy=None)
    slot = de.create_slots(v, 0.0, "m", "own", False)
    slot_table, table = weakref.ref(slot.table), weakref.ref(v.table)
    del slot
    assert not deleted.holders(slot_table)

    slot = de.create_slots(v, 0.0, "m", "own", False)
    del v
    assert not deleted.holders(table)
    slot.upsert(tf.constant([1], tf.int64), tf.ones([1, 2]))
    assert keys_of(slot) == [1]
