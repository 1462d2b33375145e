"""Restrict policies: which keys stay, by time and by frequency."""

from __future__ import annotations

import functools
import time

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import errors, optimizers

POLICIES = [de.TimestampRestrictPolicy, de.FrequencyRestrictPolicy]
ANY_POLICY = pytest.mark.parametrize("policy", POLICIES)
SHARDS = pytest.mark.parametrize("shards", [1, 2, 3])
IN_FUNCTION = pytest.mark.parametrize("in_function", [False, True])


def variable(policy, shards=1, dim=2, **options):
    return de.Variable(
        dim=dim,
        devices=["/CPU:0"] * shards,
        restrict_policy=policy,
        name="restricted",
        **options,
    )


def keys(values):
    return tf.constant(list(values), tf.int64)


def key_set(v):
    return set(v.export()[0].numpy().tolist())


def slot_keys(v):
    return set(v.table.export_slots()[0].numpy().tolist())


def statuses(v):
    ids, values = (x.numpy() for x in v.restrict_policy.status.export())
    return dict(zip(ids.tolist(), values[:, 0].tolist(), strict=True))


def adam():
    return de.DynamicEmbeddingOptimizer(optimizers.Adam(0.1))


def train(v, optimizer, ids):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(de.embedding_lookup(v, ids, name="x"))
    optimizer.apply_gradients([(tape.gradient(loss, v), v)])


def let_a_second_pass(v):
    """Makes all that was noted a second older, which is quicker."""
    status = v.restrict_policy.status
    ids, seconds = status.export()
    status.upsert(ids, seconds - 1)


def train_two_batches(v, in_function=False):
    """Updates 0..5, a second later 4..8, with two slots a row."""
    optimizer = adam()
    step = tf.function(train) if in_function else train
    step(v, optimizer, keys(range(6)))
    if isinstance(v.restrict_policy, de.TimestampRestrictPolicy):
        let_a_second_pass(v)
    step(v, optimizer, keys(range(4, 9)))


def test_row_52_without_a_policy_restrict_warns_and_does_nothing():
    v = variable(None)
    v.upsert(keys(range(4)), tf.zeros([4, 2]))

    with pytest.warns(UserWarning, match="no restrict policy"):
        assert v.restrict(2) is None

    assert int(v.size()) == 4
    assert v.restrict_policy is None


@IN_FUNCTION
def test_row_53_a_timestamp_is_the_second_of_the_last_update(in_function):
    v = variable(de.TimestampRestrictPolicy, 2)
    note = v.restrict_policy.apply_update
    note = tf.function(note) if in_function else note
    before = int(time.time())
    note(keys(range(3)))
    time.sleep(1.1)
    note(keys(range(1, 4)))

    found = statuses(v)
    assert len(found) == int(v.restrict_policy.status.size()) == 4
    assert before <= found[0] < found[1] == found[2] == found[3]
    assert found[3] <= int(time.time())
    assert v.restrict_policy.status.value_dtype == tf.int32
    assert int(v.size()) == 0


@SHARDS
@IN_FUNCTION
def test_row_54_the_keys_of_the_latest_timestamps_stay(shards, in_function):
    v = variable(de.TimestampRestrictPolicy, shards)
    train_two_batches(v, in_function)

    assert int(v.restrict(5, trigger=100)) == 0
    assert key_set(v) == slot_keys(v) == set(statuses(v)) == set(range(9))

    assert int(v.restrict(5, trigger=5)) == 4
    assert key_set(v) == slot_keys(v) == set(statuses(v)) == set(range(4, 9))


@SHARDS
@IN_FUNCTION
def test_row_55_the_most_frequent_keys_stay(shards, in_function):
    v = variable(de.FrequencyRestrictPolicy, shards)
    train_two_batches(v, in_function)

    assert int(v.restrict(2, trigger=2)) == 7
    assert key_set(v) == slot_keys(v) == {4, 5}
    assert statuses(v) == {4: 2, 5: 2}


@SHARDS
@pytest.mark.parametrize(("count_repeats", "count"), [(False, 1), (True, 3)])
def test_row_56_a_key_counts_once_a_batch_or_as_often_as_it_comes(
    shards, count_repeats, count
):
    policy = functools.partial(
        de.FrequencyRestrictPolicy, count_repeats=count_repeats
    )
    v = variable(policy, shards)

    v.restrict_policy.apply_update(keys([0, 1, 2, 2, 2]))
    v.restrict_policy.apply_update(keys([[2], [0]]))

    assert statuses(v) == {0: 2, 1: 1, 2: count + 1}


def test_row_56_a_key_of_two_lookups_of_a_step_counts_once():
    v, optimizer = variable(de.FrequencyRestrictPolicy), adam()
    with tf.GradientTape() as tape:
        rows = [
            de.embedding_lookup(v, keys(ids), name="x", return_trainable=True)
            for ids in ([1, 2], [2, 3])
        ]
        loss = tf.add_n([tf.reduce_sum(row) for row, _ in rows])
    trainables = [trainable for _, trainable in rows]
    gradients = tape.gradient(loss, trainables)
    optimizer.apply_gradients(zip(gradients, trainables, strict=True))

    assert statuses(v) == {1: 1, 2: 1, 3: 1}


def test_a_frequency_stays_at_the_largest_int32():
    v = variable(de.FrequencyRestrictPolicy)
    v.restrict_policy.status.upsert(keys([1]), [[tf.int32.max - 1]])

    for _ in range(3):
        v.restrict_policy.apply_update(keys([1]))

    assert statuses(v) == {1: tf.int32.max}


@ANY_POLICY
@SHARDS
@IN_FUNCTION
def test_row_57_the_sizes_are_exact(policy, shards, in_function):
    v, optimizer = variable(policy, shards), adam()
    random = np.random.default_rng(7)
    while int(v.size()) <= 150:
        train(v, optimizer, keys(random.integers(0, 1000, 50)))
    size = int(v.size())

    restrict = tf.function(v.restrict) if in_function else v.restrict
    removed = restrict(100, trigger=150)

    assert int(removed) == size - 100
    assert len(key_set(v)) == int(v.size()) == 100
    assert key_set(v) == slot_keys(v) == set(statuses(v))


@ANY_POLICY
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"num_reserved": 2.0}, TypeError),
        ({"num_reserved": "2"}, TypeError),
        ({"num_reserved": True}, TypeError),
        ({"num_reserved": 2, "trigger": 2.5}, TypeError),
        ({"num_reserved": 2, "trigered": 3}, TypeError),
        ({"num_reserved": -1}, ValueError),
        ({"num_reserved": 2, "trigger": -1}, ValueError),
    ],
)
def test_row_58_numbers_must_be_integers_from_0_on(policy, arguments, error):
    v = variable(policy)
    v.upsert(keys(range(4)), tf.zeros([4, 2]))

    with pytest.raises(error, match="num_reserved|trigger"):
        v.restrict(**arguments)

    assert int(v.size()) == 4


@ANY_POLICY
@SHARDS
def test_row_59_keys_that_were_never_noted_go_first(policy, shards):
    v = variable(policy, shards)
    v.upsert(keys(range(20)), tf.zeros([20, 2]))
    v.restrict_policy.apply_update(keys(range(7, 10)))

    v.restrict(5)

    assert int(v.size()) == 5
    assert {7, 8, 9} <= key_set(v)
    assert set(statuses(v)) == {7, 8, 9}


@ANY_POLICY
@SHARDS
@pytest.mark.parametrize("kept", [0, 4, 9, 11])
def test_row_59_remainders_are_dealt_out(policy, shards, kept):
    v = variable(policy, shards)
    v.upsert(keys(range(0, 30, 3)), tf.zeros([10, 2]))
    v.restrict_policy.apply_update(keys(range(0, 30, 3)))

    v.restrict(kept)

    assert int(v.size()) == min(kept, 10)
    assert set(statuses(v)) == key_set(v)


@ANY_POLICY
def test_the_status_of_keys_that_the_variable_lacks_is_dropped(policy):
    v = variable(policy, 2)
    v.upsert(keys(range(4)), tf.zeros([4, 2]))
    v.restrict_policy.apply_update(keys([2, 3, 50, 51]))

    v.restrict(3)

    assert key_set(v) >= {2, 3}
    assert set(statuses(v)) == {2, 3}


@ANY_POLICY
def test_the_rows_that_stay_keep_their_values_and_slots(policy):
    v = variable(policy, 2)
    train_two_batches(v)
    values = dict(zip(*(x.numpy().tolist() for x in v.export()), strict=True))
    ids, slots = v.table.export_slots()
    moments = dict(
        zip(
            ids.numpy().tolist(), slots["momenta"].numpy().tolist(), strict=True
        )
    )

    v.restrict(2)

    for key in key_set(v):
        assert v.lookup(keys([key])).numpy()[0].tolist() == values[key]
    ids, slots = v.table.export_slots()
    for key, row in zip(ids.numpy(), slots["momenta"].numpy(), strict=True):
        assert row.tolist() == moments[key]


@ANY_POLICY
@IN_FUNCTION
@pytest.mark.parametrize("rule", ["Adam", "Lion"])
def test_int32_keys_are_followed_through_training(policy, in_function, rule):
    dealt = set()

    def partitioner(ids, shards):
        dealt.add(ids.dtype)
        return ids % shards

    v = variable(policy, shards=2, key_dtype=tf.int32, partitioner=partitioner)
    optimizer = de.DynamicEmbeddingOptimizer(
        getattr(tf.keras.optimizers, rule)(0.1)
    )
    step = tf.function(train) if in_function else train
    for ids in ([1, -2, 3, 3], [3]):
        step(v, optimizer, tf.constant(ids, tf.int32))
        let_a_second_pass(v)
    step(v, optimizer, tf.constant([3], tf.int32))

    assert set(statuses(v)) == key_set(v) == {1, -2, 3}
    assert dealt == {tf.int32}
    v.restrict(1)
    assert set(statuses(v)) == key_set(v) == slot_keys(v) == {3}


@pytest.mark.parametrize("policy", [3, "timestamp", object, de.Variable])
def test_row_92_a_policy_must_be_a_class_of_policies(policy):
    with pytest.raises(TypeError, match="RestrictPolicy"):
        variable(policy)


@ANY_POLICY
@pytest.mark.parametrize("var", ["x", None, 3, de.Variable])
def test_row_92_a_policy_follows_a_variable(policy, var):
    with pytest.raises(errors.DtypeError, match="`var` must be a .*Variable"):
        policy(var)


@ANY_POLICY
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (3, 1)])
def test_row_95_the_status_is_saved_and_restrict_goes_on(
    tmp_path, policy, before, after
):
    v = variable(policy, before)
    train_two_batches(v)
    saved = tf.train.Checkpoint(v=v).save(tmp_path / "c")
    noted = statuses(v)

    other = variable(policy, after)
    other.restrict_policy.apply_update(keys([77]))
    tf.train.Checkpoint(v=other).restore(saved)

    assert statuses(other) == noted
    other.restrict(2, trigger=2)
    assert len(key_set(other)) == 2
    assert key_set(other) <= set(range(4, 9))


def test_row_95_a_variable_without_checkpoint_saves_no_status(tmp_path):
    v = variable(de.FrequencyRestrictPolicy, checkpoint=False)
    v.restrict_policy.apply_update(keys([1]))
    saved = tf.train.Checkpoint(v=v).save(tmp_path / "c")
    v.restrict_policy.apply_update(keys([1, 2]))

    tf.train.Checkpoint(v=v).restore(saved)

    assert statuses(v) == {1: 2, 2: 1}
