"""The ops that look into a table: all that they are asked for, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed.ops import table as table_ops

ALL = 2**62


def _filled(dtype=tf.int64, **options):
    handle = table_ops.create(2, key_dtype=dtype, name="t", **options)
    keys = tf.constant(["3", "1", "2"])
    keys = keys if dtype == tf.string else tf.strings.to_number(keys, dtype)
    table_ops.upsert(handle, keys, [[3.0, 4.0], [0.0, 1.0], [2.0, 0.0]])
    return handle


@pytest.mark.parametrize("dtype", [tf.int64, tf.int32, tf.string])
def test_a_survey_has_keys_of_the_tables_dtype_with_their_norms(dtype):
    handle = _filled(dtype)
    survey = table_ops.survey(handle, ALL, key_dtype=dtype)

    found = dict(zip(survey.keys.numpy().tolist(), survey.norms.numpy()))
    names = [b"1", b"2", b"3"] if dtype == tf.string else [1, 2, 3]
    assert found == dict(zip(names, [1.0, 2.0, 5.0]))
    assert survey.keys.dtype == dtype
    assert survey.worth.shape == [0]
    assert survey.trained.numpy().all()
    assert survey.counts[0] == 3


@pytest.mark.parametrize("run", [lambda f: f(), lambda f: tf.function(f)()])
def test_the_top_rows_are_those_of_the_highest_worth(run):
    handle = _filled()
    keys, worth = run(lambda: table_ops.top(handle, 2, policy="smallest_norm"))

    assert keys.numpy().tolist() == [3, 2]
    np.testing.assert_array_equal(worth, [5, 2])


def test_the_counts_of_a_survey_are_those_of_the_other_ops():
    handle = _filled(admission="count seen=2", eviction="least_recent")
    table_ops.lookup(handle, tf.constant([1, 7], tf.int64), dim=2)
    survey = table_ops.survey(handle, ALL)
    counts = survey.counts.numpy().tolist()

    stats = [int(n) for n in table_ops.stats(handle)]
    assert counts == [*stats, *table_ops.use(handle).numpy().tolist(), 0]
    assert survey.worth.shape == [3]


@pytest.mark.parametrize("call", [table_ops.survey, table_ops.top])
def test_numbers_of_rows_and_keys_that_are_not_allowed_are_refused(call):
    handle = _filled(eviction="least_frequent")
    refused = tf.errors.InvalidArgumentError

    with pytest.raises(refused, match="must not be negative; got -1"):
        call(handle, -1)
    with pytest.raises((refused, ValueError), match="scalar|rank 0|shape"):
        call(handle, [1, 2])
    with pytest.raises(refused, match="string"):
        call(handle, 1, key_dtype=tf.string)


def test_the_top_rows_by_a_policy_without_notes_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="keep no notes"):
        table_ops.top(_filled(), 1)
