"""When rows expire: on demand, by steps, at checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import errors, optimizers, policies
from tfembed.tables import HashTable

SHARDS = pytest.mark.parametrize("shards", [1, 3])


def table_of(shards=1, **expiry):
    table = HashTable(
        1,
        name="t",
        devices=["/CPU:0"] * shards,
        eviction=policies.LeastFrequent(),
        expiry=policies.Expiry(2, **expiry) if expiry else None,
    )
    table.attach(optimizers.SGD(1.0))
    return table


def train(table, *batches):
    for keys in batches:
        keys = tf.constant(keys, tf.int64)
        table.apply_gradients(keys, tf.ones([*keys.shape, 1]))


def keys_of(table):
    return sorted(table.keys().numpy().tolist())


@SHARDS
@pytest.mark.parametrize("write", [False, True])
def test_rows_expire_before_a_checkpoint(tmp_path, shards, write):
    table = table_of(shards, at_checkpoints=True)
    train(table, [1, 2, 3], [2, 3], [3, 4])
    assert keys_of(table) == [1, 2, 3, 4]

    checkpoint = tf.train.Checkpoint(t=table)
    save = checkpoint.write if write else checkpoint.save
    path = save(tmp_path / "c")

    assert keys_of(table) == [2, 3]
    restored = table_of()
    tf.train.Checkpoint(t=restored).restore(path)
    assert keys_of(restored) == [2, 3]


def test_a_checkpoint_alone_expires_nothing(tmp_path):
    table = table_of(every=100)
    train(table, [1, 2], [2])

    tf.train.Checkpoint(t=table).save(tmp_path / "c")

    assert keys_of(table) == [1, 2]


def test_an_export_leaves_the_table_as_it_is(tmp_path):
    module = tf.Module()
    module.table = table_of(at_checkpoints=True)
    module.serve = tf.function(
        lambda keys: module.table.lookup(keys)[0],
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    train(module.table, [1, 2], [2])

    for i in range(2):
        tf.saved_model.save(module, str(tmp_path / str(i)))

    assert keys_of(module.table) == [1, 2]
    served = tf.saved_model.load(str(tmp_path / "1"))
    assert served.serve([1, 2]).numpy().tolist() == [[-1.0], [-2.0]]

    tf.train.Checkpoint(t=module.table).save(tmp_path / "c")
    assert keys_of(module.table) == [2]


def test_steps_are_counted_over_restores(tmp_path):
    table = table_of(every=5)
    train(table, [1], [2], [2], [2])
    path = tf.train.Checkpoint(t=table).save(tmp_path / "c")

    resumed = table_of(every=5)
    status = tf.train.Checkpoint(t=resumed).restore(path)
    status.assert_consumed()
    assert keys_of(resumed) == [1, 2]
    train(resumed, [2])

    # A restored row counts as touched once.
    assert keys_of(resumed) == [2]


def test_a_checkpoint_without_a_count_of_steps_is_restored(tmp_path):
    table = table_of()
    train(table, [1, 2])
    path = tf.train.Checkpoint(t=table).save(tmp_path / "c")

    resumed = table_of(every=2)
    tf.train.Checkpoint(t=resumed).restore(path)

    assert keys_of(resumed) == [1, 2]
    train(resumed, [2], [2])
    assert keys_of(resumed) == [2]


def test_what_expires_is_handed_out_with_its_values():
    table = table_of()
    train(table, [1, 2], [2])

    removed = table.expire(2, return_values=True)

    assert removed.keys.numpy().tolist() == [1]
    np.testing.assert_array_equal(removed.values, [[-1.0]])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "never happens"),
        ({"at_checkpoints": False}, "never happens"),
        ({"every": 0}, "`every`"),
        ({"every": 2.0}, "`every`"),
        ({"every": True}, "`every`"),
        ({"at_checkpoints": 1}, "`at_checkpoints`"),
        ({"every": 1, "limit": -1.0}, "`limit`"),
    ],
)
def test_an_expiry_that_is_not_allowed_is_refused(options, text):
    with pytest.raises(errors.ArgumentError, match=text):
        policies.Expiry(**{"limit": 1, **options})
