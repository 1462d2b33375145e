"""Ops inside input pipelines, and from many threads at once."""

from __future__ import annotations

import threading
import time
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from tfembed.ops import (
    FeaturePlan,
    feature_ids,
    grouped_lookup,
    grouped_update,
    table,
)


def filled(keys=100):
    handle = table.create(2)
    rows = np.repeat(np.arange(keys, dtype=np.float32)[:, None], 2, 1)
    table.upsert(handle, np.arange(keys), rows)
    return handle


def test_a_dataset_maps_over_lookups_of_a_table():
    handle = filled()
    data = tf.data.Dataset.range(40).batch(4)
    data = data.map(
        lambda keys: table.lookup(handle, keys, dim=2)[0],
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    found = np.concatenate([rows.numpy() for rows in data])
    np.testing.assert_array_equal(found[:, 0], np.arange(40))


def test_a_dataset_sees_rows_that_were_written_before_its_element():
    handle = filled(1)
    data = tf.data.Dataset.from_tensors(tf.constant([7], tf.int64)).map(
        lambda keys: table.lookup(handle, keys, dim=2)[1]
    )
    before = next(iter(data)).numpy().tolist()
    table.upsert(handle, [7], tf.ones([1, 2]))
    assert (before, next(iter(data)).numpy().tolist()) == ([False], [True])


def test_a_dataset_maps_over_grouped_lookups():
    handle, variable = filled(), tf.Variable(tf.ones([100, 2]))

    def activations(keys):
        return grouped_lookup(
            [handle, variable],
            [2, 2],
            [feature_ids(keys), feature_ids(keys)],
            [FeaturePlan(0, "sum"), FeaturePlan(1, "sum")],
        )

    data = tf.data.Dataset.range(10).batch(5).map(activations)
    first, second = next(iter(data))
    np.testing.assert_array_equal(first[:, 0], np.arange(5))
    assert second.numpy().all()


def test_a_table_lives_as_long_as_the_dataset_that_reads_it():
    def pipeline():
        handle = filled()
        return tf.data.Dataset.range(2).map(
            lambda key: table.lookup(handle, key, dim=2)[1]
        )

    assert all(exists.numpy() for exists in pipeline())


def in_threads(*functions):
    errors = []

    def guarded(function):
        try:
            function()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[f]) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors


def test_lookups_and_updates_of_the_same_tables_do_not_block_one_another():
    one, two = tf.Variable(tf.zeros([100, 2])), tf.Variable(tf.zeros([100, 2]))
    first, second = table.create(2), table.create(2)
    plans = [FeaturePlan(t, "sum") for t in range(4)]
    features = [feature_ids(tf.range(100))] * 4

    def look_up(tables):
        for _ in range(30):
            grouped_lookup(tables, [2] * 4, features, plans)

    def update(tables):
        for _ in range(30):
            grouped_update(
                tables,
                [],
                [2] * 4,
                features,
                plans,
                [tf.ones([100, 2])] * 4,
                rules=["sgd"] * 4,
                learning_rates=[-1.0] * 4,
            )

    tables = [one, first, two, second]
    in_threads(
        lambda: look_up(tables),
        lambda: look_up(tables[::-1]),
        lambda: update(tables),
        lambda: update(tables[::-1]),
    )
    # Each of the 60 steps counts, in variables and tables alike.
    for source in tables:
        rows = source
        if not isinstance(source, tf.Variable):
            rows, _ = table.lookup(source, tf.range(100, dtype=tf.int64), dim=2)
        np.testing.assert_array_equal(rows, np.full([100, 2], 60.0))


def test_a_row_is_whole_while_others_write_it():
    handle, keys = table.create(64), tf.range(64, dtype=tf.int64)
    seen = []

    def write():
        for value in range(50):
            table.upsert(handle, keys, tf.fill([64, 64], value + 1.0))

    def read():
        for _ in range(50):
            seen.append(table.lookup(handle, keys, dim=64)[0].numpy())

    in_threads(write, read, read)
    for rows in seen:
        assert (rows == rows[:, :1]).all()


def torn_lookups(write, read, turns=20):
    """How many lookups of two threads are torn while turns are written.

    Turns go on until each thread had a few lookups: some turns are over before
    a thread gets a processor. Each turn gives all keys the same row, and has
    all of them there or none.
    """
    stop = threading.Event()
    found = [], []

    def reader(own):
        while not stop.is_set():
            rows, exists = (x.numpy() for x in read())
            own.append(
                rows.min() == rows.max() and exists.all() == exists.any()
            )

    def writer():
        turn, hangs = 0, time.monotonic() + 50
        try:
            while turn < turns or min(map(len, found)) < 3:
                write(turn := turn + 1)
                assert time.monotonic() < hangs
        finally:
            stop.set()

    in_threads(writer, *(partial(reader, own) for own in found))
    return sum(own.count(False) for own in found)


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [(30, tf.int64), (3000, tf.int64), (20_000, tf.int64), (3000, tf.string)],
)
def test_a_lookup_sees_a_batch_whole_or_not_at_all(keys, dtype):
    # The kind: a batch of changes that readers see in part. Also looked at:
    # imports, evictions, new keys and growth (table_whole_batches_test.cc),
    # tables of string rows, which are TensorFlow's own and whole already, and
    # training steps, which go row by row.
    handle = table.create(4, key_dtype=dtype)
    batch = tf.strings.as_string(tf.range(keys))
    if dtype == tf.int64:
        batch = tf.range(keys, dtype=tf.int64)
    ones = tf.ones([keys, 4])
    there = tf.ones([keys], tf.bool)

    def read():
        return table.lookup(handle, batch, dim=4)

    def upsert(turn):
        table.upsert(handle, batch, turn * ones)

    def accum(turn):
        table.accum(handle, batch, ones, there)

    def remove_and_insert(turn):
        table.remove(handle, batch)
        table.upsert(handle, batch, ones)

    upsert(0)
    assert torn_lookups(upsert, read) == 0
    assert torn_lookups(accum, read) == 0
    assert torn_lookups(remove_and_insert, read) == 0
