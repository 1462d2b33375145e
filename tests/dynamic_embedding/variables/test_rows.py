"""A `Variable` of int64 keys and float32 rows: upsert, lookup, remove, export."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.filled_variables import contents, filled, variable
from tfembed import errors

INT64 = np.iinfo(np.int64)
InvalidArgument = tf.errors.InvalidArgumentError


@pytest.mark.parametrize("dim", [1, 8, 16, 128])
@pytest.mark.parametrize("shards", [1, 3])
def test_rows_02_to_05_hold_on_any_number_of_shards(dim, shards):
    v = filled(dim, shards=shards)
    assert int(v.size()) == 4

    v.remove(tf.constant([1, 5], tf.int64))

    assert int(v.size()) == 3
    rows = v.lookup(tf.constant([0, 1, 5], tf.int64))
    np.testing.assert_array_equal(
        rows, np.repeat([[0.0], [-1.0], [-1.0]], dim, 1)
    )
    assert contents(v) == {k: [float(k)] * dim for k in (0, 2, 3)}


def test_row_06_upsert_overwrites():
    v = filled()
    v.upsert([2], [[7.0]])
    assert contents(v) == {0: [0], 1: [1], 2: [7], 3: [3]}


def test_row_07_of_a_repeated_key_the_last_value_stays():
    v = variable()
    v.upsert([0, 1, 2, 2], [[0.0], [1.0], [2.0], [3.0]])
    assert contents(v) == {0: [0], 1: [1], 2: [3]}


@pytest.mark.parametrize("shards", [1, 2])
def test_rows_08_and_10_no_keys_are_fine(shards):
    v = variable(3, shards=shards)
    none = tf.zeros([0], tf.int64)

    v.upsert(none, tf.zeros([0, 3]))
    values, exists = v.lookup(none, return_exists=True)

    assert values.shape == (0, 3)
    assert exists.shape == (0,)
    assert exists.dtype == tf.bool
    assert int(v.size()) == 0


@pytest.mark.parametrize("shape", [[6], [2, 3], [2, 2], [3, 1], []])
@pytest.mark.parametrize("shards", [1, 2])
def test_row_11_values_of_another_shape_are_refused(shape, shards):
    v = variable(2, shards=shards)
    with pytest.raises(
        InvalidArgument, match=r"Expected shape \[3,2\] for value"
    ):
        v.upsert([1, 2, 3], tf.zeros(shape))
    assert int(v.size()) == 0


def test_row_09_flat_values_for_no_keys_are_refused():
    with pytest.raises(InvalidArgument, match="Expected shape"):
        variable().upsert(tf.zeros([0], tf.int64), tf.zeros([0]))


def test_shapes_known_only_at_run_time_are_refused_too():
    v = variable(2)

    @tf.function(
        input_signature=[tf.TensorSpec(None), tf.TensorSpec(None, tf.int64)]
    )
    def upsert(values, keys):
        v.upsert(keys, values)

    with pytest.raises(InvalidArgument, match="Expected shape"):
        upsert(tf.zeros([2, 3]), tf.zeros([3], tf.int64))
    assert int(v.size()) == 0


@pytest.mark.parametrize(
    "keys",
    [
        [1.0],
        np.float32([1]),
        tf.constant([1.0]),
        ["a"],
        tf.constant([1], tf.uint64),
    ],
)
def test_keys_of_another_dtype_are_refused(keys):
    v = variable()
    with pytest.raises(ValueError, match="must be"):
        v.upsert(keys, [[1.0]])
    with pytest.raises(ValueError, match="must be"):
        v.lookup(keys)
    with pytest.raises(TypeError, match="must be"):
        v.remove(keys)


@pytest.mark.parametrize(
    "values", [[["a"]], tf.constant([["a"]]), tf.constant([[1]])]
)
def test_values_of_another_dtype_are_refused(values):
    v = variable()
    with pytest.raises(ValueError, match="must be"):
        v.upsert([1], values)
    assert int(v.size()) == 0


@pytest.mark.parametrize("shards", [1, 2])
def test_rows_16_and_21_a_scalar_key_has_a_row_of_rank_1(shards):
    v = variable(2, shards=shards)
    key = tf.Variable(0, dtype=tf.int64)
    v.upsert(key, tf.Variable([5.0, 6.0]))
    np.testing.assert_array_equal(v.lookup(key), [5, 6])
    v.remove(key)
    np.testing.assert_array_equal(v.lookup(key), [-1, -1])


@pytest.mark.parametrize("shards", [1, 2])
def test_rows_19_and_20_removal_takes_keys_of_any_rank(shards):
    v = filled(3, shards=shards, keys=range(3))
    v.remove(tf.constant([[0, 3]], tf.int64))
    rows = v.lookup([[0, 1], [2, 3]])
    wanted = np.repeat([[[-1.0], [1.0]], [[2.0], [-1.0]]], 3, 2)
    np.testing.assert_array_equal(rows, wanted)
    assert int(v.size()) == 2


@pytest.mark.parametrize("shards", [1, 2])
def test_rows_17_18_and_20_keys_may_have_any_rank(shards):
    v = variable(shards=shards)
    v.upsert([[0, 1], [2, 3]], [[[0.0], [1.0]], [[2.0], [3.0]]])

    rows = v.lookup([[0, 1], [2, 4]])
    np.testing.assert_array_equal(rows, [[[0], [1]], [[2], [-1]]])

    v.remove(tf.constant([[0, 3]], tf.int64))
    np.testing.assert_array_equal(
        v.lookup([[0, 1], [2, 3]]), [[[-1], [1]], [[2], [-1]]]
    )
    assert int(v.size()) == 2


def test_row_22_keys_are_dealt_by_remainder_and_exported_by_shard():
    v = filled(shards=3, keys=range(10))

    assert [int(v.size(i)) for i in range(3)] == [4, 3, 3]
    keys = v.export()[0].numpy()
    assert [set(keys[:4]), set(keys[4:7]), set(keys[7:])] == [
        {0, 3, 6, 9},
        {1, 4, 7},
        {2, 5, 8},
    ]


def test_row_23_a_partitioner_may_leave_a_shard_empty():
    v = de.Variable(
        devices=["/CPU:0"] * 3,
        partitioner=lambda keys, n: tf.cast(keys % 2, tf.int32),
    )
    v.upsert(range(5), [[0.0], [1.0], [2.0], [3.0], [4.0]])

    assert [int(v.size(i)) for i in range(3)] == [3, 2, 0]
    np.testing.assert_array_equal(
        v.lookup([1, 3, 2, 3, 0]), [[1], [3], [2], [3], [0]]
    )


@pytest.mark.parametrize("shard", [5, -1])
def test_row_24_a_partitioner_that_names_no_shard_is_refused(shard):
    v = de.Variable(
        devices=["/CPU:0"] * 2,
        partitioner=lambda keys, n: tf.fill(tf.shape(keys), shard),
    )
    with pytest.raises(InvalidArgument, match=r"in \[0, 2\)"):
        v.upsert([1], [[1.0]])


@pytest.mark.parametrize("shards", [1, 3])
def test_row_25_every_int64_is_a_key(shards):
    keys = [-1, -2, -3, -4, INT64.min, INT64.max]
    v = variable(shards=shards)
    v.upsert(keys, np.arange(6, dtype=np.float32)[:, None])

    assert int(v.size()) == 6
    values, exists = v.lookup(keys, return_exists=True)
    np.testing.assert_array_equal(values[:, 0], range(6))
    assert all(exists.numpy())


@pytest.mark.parametrize("shards", [1, 2])
def test_row_26_lookup_says_which_keys_exist(shards):
    v = filled(shards=shards)
    _, exists = v.lookup([0, 1, 100, 3], return_exists=True)
    np.testing.assert_array_equal(exists, [True, True, False, True])
    assert int(v.size()) == 4


def test_row_41_clear_empties_the_variable():
    v = filled()
    v.clear()
    assert int(v.size()) == 0
    np.testing.assert_array_equal(v.lookup([1]), [[-1]])
    v.upsert([1], [[1.0]])
    assert contents(v) == {1: [1]}


def test_row_45_size_is_that_of_a_shard_or_of_all():
    v = filled(shards=2, keys=range(5))
    assert [int(v.size(0)), int(v.size(1)), int(v.size())] == [3, 2, 5]


def test_row_46_an_export_fills_another_variable():
    first, second = filled(3), variable(3, shards=2)
    second.upsert(*first.export())
    assert contents(second) == contents(first)


@pytest.mark.parametrize("init_size", [12_345, 0, 168])
def test_rows_50_and_51_a_variable_outgrows_its_first_size(init_size):
    v = variable(init_size=init_size)
    assert v.table.stats().capacity >= init_size
    keys = np.arange(20_000)
    v.upsert(keys, keys[:, None].astype(np.float32))
    assert sorted(contents(v)) == list(range(20_000))


def test_a_small_variable_takes_a_small_index():
    v = filled(keys=range(10))
    assert v.table.stats().index_bytes < 2_000


def test_row_50_an_environment_variable_sets_the_default_size(monkeypatch):
    monkeypatch.setenv("TF_HASHTABLE_INIT_SIZE", "50000")
    assert variable().table.stats().capacity >= 50_000


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"kv_creator": object()}, TypeError, "CuckooHashTableCreator"),
        ({"dim": -1}, ValueError, "`dim` must be"),
        ({"dim": 2.5}, ValueError, "`dim` must be"),
        ({"init_size": -1}, ValueError, "`init_size` must be"),
        ({"devices": []}, ValueError, "`devices`"),
        ({"devices": [1]}, ValueError, "`devices`"),
        ({"devices": ["none"]}, ValueError, "`devices`"),
        ({"devices": 5}, TypeError, "`devices`"),
        ({"partitioner": 5}, TypeError, "`partitioner`"),
        ({"devices": "/GPU:0"}, NotImplementedError, "/CPU:0"),
        ({"initializer": object()}, ValueError, "Known forms"),
    ],
)
def test_arguments_that_are_not_allowed_are_refused(options, error, text):
    with pytest.raises(error, match=text) as caught:
        de.Variable(**options)
    assert isinstance(caught.value, errors.TfembedError)


def test_a_shard_that_is_not_there_has_no_size():
    with pytest.raises(ValueError, match=r"in \[0, 1\)"):
        variable().size(1)


@pytest.mark.parametrize("shards", [1, 3])
def test_keys_of_a_rank_that_is_known_only_when_a_function_runs(shards):
    v = variable(2, shards=shards)
    any_keys = tf.TensorSpec(None, tf.int64)
    any_rows = tf.TensorSpec(None, tf.float32)
    any_flags = tf.TensorSpec(None, tf.bool)
    upsert = tf.function(v.upsert, [any_keys, any_rows])
    accum = tf.function(v.accum, [any_keys, any_rows, any_rows, any_flags])
    remove = tf.function(v.remove, [any_keys])
    look_up = tf.function(
        lambda keys: v.lookup(keys, return_exists=True), [any_keys]
    )
    for shape in ([], [3], [2, 3], [0], [2, 1, 2]):
        keys = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        rows = keys[..., np.newaxis] + np.array([1.0, 2.0], np.float32)
        rows = rows.astype(np.float32)
        upsert(keys, rows)
        accum(keys, rows, 2 * rows, np.ones(shape, bool))
        found, exists = look_up(keys)
        assert exists.numpy().shape == tuple(shape) and exists.numpy().all()
        np.testing.assert_array_equal(found, 2 * rows)
        remove(keys)
        assert int(v.size()) == 0
    with pytest.raises(tf.errors.InvalidArgumentError):
        upsert(np.arange(3), np.zeros([2, 2], np.float32))
    assert int(v.size()) == 0
