"""The results that a partitioner may return, and those that are refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import errors
from tfembed.tables import HashTable

KEYS = tf.constant([3, 5, 4], tf.int64)


def table_of(partitioner):
    devices = ["/CPU:0"] * 2
    return HashTable(1, name="t", devices=devices, partitioner=partitioner)


def write(table):
    table.upsert(KEYS, tf.ones([3, 1]))


def read(table):
    table.lookup(KEYS)


USES = pytest.mark.parametrize("use", [write, read])
TRACED = pytest.mark.parametrize("traced", [False, True])


def called(use, table, traced):
    return tf.function(lambda: use(table))() if traced else use(table)


@USES
@TRACED
@pytest.mark.parametrize(
    "partitioner",
    [
        lambda keys, n: tf.cast(keys, tf.float32) / 3,
        lambda keys, n: tf.equal(keys, 3),
        lambda keys, n: tf.as_string(keys),
        lambda keys, n: [0.5, 1.0, 0.0],
        lambda keys, n: None,
    ],
)
def test_shards_that_are_no_integers_are_refused(use, traced, partitioner):
    table = table_of(partitioner)
    with pytest.raises(errors.DtypeError, match=r"table 't'.*\[0, 2\).*got"):
        called(use, table, traced)
    assert int(table.size()) == 0


WRONG_SHAPES = [
    lambda keys, n: 0,
    lambda keys, n: tf.constant(1),
    lambda keys, n: keys[:, tf.newaxis] % n,
    lambda keys, n: keys[:1] % n,
]


@USES
@TRACED
@pytest.mark.parametrize("partitioner", WRONG_SHAPES)
def test_shards_of_another_shape_than_the_keys_are_refused(
    use, traced, partitioner
):
    table = table_of(partitioner)
    with pytest.raises(errors.ArgumentError, match=r"table 't'.*\(3,\); got"):
        called(use, table, traced)
    assert int(table.size()) == 0


@USES
@pytest.mark.parametrize("partitioner", WRONG_SHAPES)
def test_a_run_refuses_shapes_that_a_trace_does_not_know(use, partitioner):
    def hidden(keys, n):
        shards = tf.convert_to_tensor(partitioner(keys, n))
        return tf.compat.v1.placeholder_with_default(shards, None)

    table = table_of(hidden)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"table \W+t\W"):
        called(use, table, True)
    assert int(table.size()) == 0


@TRACED
def test_a_shard_beyond_int32_is_not_wrapped(traced):
    table = table_of(lambda keys, n: keys % n + 2**32)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0, 2\)"):
        called(write, table, traced)
    assert int(table.size()) == 0


@TRACED
@pytest.mark.parametrize("dtype", [tf.int8, tf.uint8, tf.int32, tf.uint64])
def test_shards_are_integers_of_any_width(traced, dtype):
    table = table_of(lambda keys, n: tf.cast(keys % n, dtype))
    called(write, table, traced)
    assert [int(table.size(i)) for i in range(2)] == [1, 2]


def test_shards_may_be_lists_and_arrays():
    for made in (list, np.asarray):
        table = table_of(lambda keys, n, m=made: m([int(k) % n for k in keys]))
        write(table)
        assert table.lookup(KEYS)[1].numpy().all()
        assert table.lookup(tf.zeros([0], tf.int64))[0].shape == [0, 1]


def test_a_variables_partitioner_is_checked_too():
    v = de.Variable(
        name="v", devices=["/CPU:0"] * 2, partitioner=lambda keys, n: 0
    )
    with pytest.raises(errors.ArgumentError, match="'v'"):
        de.embedding_lookup(v, [1, 2], name="x")
