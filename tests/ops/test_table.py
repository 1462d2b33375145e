"""The ops on one table: what they do and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed.ops import table

DIM = 2
INT64 = np.iinfo(np.int64)


def eager(function):
    return function


def in_function(function):
    """As a tf.function, which may not return the operation of a write."""

    @tf.function
    def run(*args):
        result = function(*args)
        return None if isinstance(result, tf.Operation) else result

    return run


MODES = pytest.mark.parametrize("run", [eager, in_function])


def create(keys=(), *, dim=DIM, fill=-1.0, **options):
    """A table whose missing rows are `fill` and whose key k has rows k."""
    handle = table.create(dim, name="user", initializer_args=[fill], **options)
    if len(keys):
        table.upsert(handle, keys, rows_of(keys, dim))
    return handle


def rows_of(keys, dim=DIM):
    keys = np.asarray(keys, np.float32)
    return np.broadcast_to(keys[..., None], (*keys.shape, dim)).copy()


def lookup(handle, keys, dim=DIM):
    values, exists = table.lookup(handle, keys, dim=dim)
    return values.numpy(), exists.numpy()


def export(handle):
    keys, values, slots, *_ = table.snapshot([handle], only_rows=True)
    return keys, values, slots


@MODES
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (1, 2, 2), (0,), (2, 0)])
def test_lookup_gives_rows_in_the_shape_of_the_keys(run, shape):
    handle = create(range(0, 20, 2))
    keys = np.random.default_rng(1).integers(0, 20, shape)
    values, exists = run(lambda k: table.lookup(handle, k, dim=DIM))(
        tf.constant(keys, tf.int64)
    )
    there = keys % 2 == 0
    expected = np.where(there[..., None], rows_of(keys), -1)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(exists, there)


def test_lookup_inserts_nothing():
    handle = create()
    lookup(handle, [1, 2, 3])
    assert table.size(handle).numpy() == 0


def test_a_missing_key_reads_the_same_in_any_batch_and_when_inserted():
    options = {"initializer": "normal", "initializer_args": [0.0, 1.0]}
    one = table.create(8, seed=7, **options)
    two = table.create(8, seed=7, **options)
    first, _ = lookup(one, [5, 9, 5], 8)
    second, _ = lookup(two, [9, 1, 5, 2], 8)
    np.testing.assert_array_equal(first[0], first[2])
    np.testing.assert_array_equal(first[:2], second[[2, 0]])


@MODES
def test_every_int64_is_a_key(run):
    keys = tf.constant([INT64.min, -2, -1, 0, 1, INT64.max], tf.int64)
    handle = create()
    values = tf.reshape(tf.range(12.0), [6, 2])
    run(lambda: table.upsert(handle, keys, values))()
    read, exists = lookup(handle, keys)
    np.testing.assert_array_equal(read, values)
    assert exists.all()


def test_the_last_of_repeated_keys_stays():
    handle = create()
    table.upsert(handle, [3, 4, 3], rows_of([1, 2, 9]))
    np.testing.assert_array_equal(lookup(handle, [3, 4])[0], rows_of([9, 2]))
    assert table.size(handle).numpy() == 2


def test_keys_of_another_dtype_than_the_tables_are_refused():
    text = "'user' has keys of dtype int64; got int32"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        table.lookup(create(), tf.constant([1], tf.int32), dim=DIM)


def test_values_of_another_dtype_than_the_tables_are_refused():
    text = "'user' has values of dtype float; got half"
    handle = create([1])
    rows = tf.zeros([1, DIM], tf.float16)
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        table.upsert(handle, [7], rows)
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        table.lookup(handle, [1], dim=DIM, value_dtype=tf.float16)
    assert table.size(handle).numpy() == 1


def test_no_keys_with_rows_of_no_keys_change_nothing():
    handle = create([1])
    table.upsert(handle, tf.zeros([0], tf.int64), tf.zeros([0, DIM]))
    assert table.size(handle).numpy() == 1


@pytest.mark.parametrize(
    ("keys", "shape", "text"),
    [
        ([7, 8, 9], [2, 3], r"Expected shape \[3,2\] for value, got \[2,3\]"),
        ([7, 8, 9], [6], r"Expected shape \[3,2\] for value, got \[6\]"),
        ([7, 8, 9], [3, 1], r"Expected shape \[3,2\] for value, got \[3,1\]"),
        ([], [0], r"Expected shape \[0,2\] for value, got \[0\]"),
        (7, [1, 2], r"Expected shape \[2\] for value, got \[1,2\]"),
        (7, [], r"Expected shape \[2\] for value, got \[\]"),
    ],
)
def test_values_of_another_shape_are_refused_unchanged(keys, shape, text):
    handle = create([1])
    keys = tf.constant(keys, tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        table.upsert(handle, keys, tf.zeros(shape))
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        table.accum(handle, keys, tf.zeros(shape), tf.fill(keys.shape, False))
    assert table.size(handle).numpy() == 1


def test_a_lookup_of_another_width_is_refused():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="dim 2; got dim 3"
    ):
        table.lookup(create([1]), [1], dim=3)


@MODES
def test_accum_ignores_keys_that_came_or_went_meanwhile(run):
    handle = create([0, 1, 2, 100])
    run(
        lambda: table.accum(
            handle,
            [0, 1, 5, 100, 6],
            tf.constant(rows_of([10, 20, 30, 40, 50])),
            [True, True, True, False, False],
        )
    )()
    read, exists = lookup(handle, [0, 1, 2, 100, 5, 6])
    np.testing.assert_array_equal(read, rows_of([10, 21, 2, 100, -1, 50]))
    assert exists.tolist() == [True, True, True, True, False, True]


def test_accum_adds_every_delta_of_a_repeated_key():
    handle = create([5])
    table.accum(handle, [5, 5], rows_of([1, 2]), [True, True])
    np.testing.assert_array_equal(lookup(handle, [5])[0], rows_of([8]))


@pytest.mark.parametrize("exists", [[True], [[True, True]]])
def test_accum_refuses_exists_of_another_shape(exists):
    handle = create([1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="for exists"):
        table.accum(handle, [1, 2], rows_of([1, 2]), exists)
    np.testing.assert_array_equal(lookup(handle, [1])[0], rows_of([1]))


@MODES
def test_removed_keys_are_gone_and_the_others_stay(run):
    handle = create(range(6))
    run(lambda: table.remove(handle, [[1, 5], [9, 1]]))()
    keys, values, _ = export(handle)
    assert sorted(keys.numpy()) == [0, 2, 3, 4]
    np.testing.assert_array_equal(values, rows_of(keys))


def test_a_cleared_table_takes_keys_again():
    handle = create(range(1000))
    table.clear([handle])
    assert table.size(handle).numpy() == 0
    assert not lookup(handle, [1])[1].any()
    table.upsert(handle, [1], rows_of([1]))
    assert table.size(handle).numpy() == 1


def test_operations_of_a_function_keep_their_order():
    handle = create()

    @tf.function
    def step():
        table.upsert(handle, [1, 2], rows_of([1, 2]))
        before = table.size(handle)
        table.remove(handle, [1])
        after, (_, exists) = (
            table.size(handle),
            table.lookup(handle, [1, 2], dim=DIM),
        )
        return before, after, exists

    before, after, exists = step()
    assert (before.numpy(), after.numpy()) == (2, 1)
    assert exists.numpy().tolist() == [False, True]


def test_export_and_import_carry_slots():
    one, two = create([1, 2, 3]), create()
    layout = {"owner": "adagrad", "names": ["a"], "initial_values": [0.5]}
    table.set_slots(one, **layout)
    keys, values, slots = export(one)
    np.testing.assert_array_equal(slots, np.full([3, DIM], 0.5))
    table.set_slots(two, **layout)
    table.import_rows(two, keys, tf.concat([values, slots + values], 1))
    keys, values, slots = export(two)
    np.testing.assert_array_equal(values, rows_of(keys))
    np.testing.assert_array_equal(slots, rows_of(keys) + 0.5)


def test_a_table_without_slots_exports_none():
    _, _, slots = export(create([1, 2]))
    assert slots.shape == [2, 0]


@pytest.mark.parametrize(
    ("keys", "shape"),
    [([1], [1, DIM + 1]), ([1], [2, DIM]), ([[1]], [1, 1, DIM])],
)
def test_imports_of_another_shape_are_refused_unchanged(keys, shape):
    handle = create()
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        table.import_rows(handle, tf.constant(keys, tf.int64), tf.zeros(shape))
    assert table.size(handle).numpy() == 0


def test_the_slots_of_another_rule_are_refused():
    handle = create([1])
    one = {"names": ["a"], "initial_values": [0.5]}
    table.set_slots(handle, owner="adagrad", **one)
    table.set_slots(handle, owner="adagrad", **one)
    with pytest.raises(tf.errors.FailedPreconditionError, match="'user'"):
        table.set_slots(handle, owner="momentum", **one)


def test_slots_go_and_those_of_another_rule_begin():
    handle = create([1, 2])
    one = {"names": ["a"], "initial_values": [0.5]}
    table.set_slots(handle, owner="adagrad", **one)

    table.drop_slots(handle)
    keys, values, slots = export(handle)
    assert slots.shape == [2, 0]
    np.testing.assert_array_equal(values, rows_of(keys))

    table.set_slots(handle, owner="momentum", **one)
    np.testing.assert_array_equal(export(handle)[2], np.full([2, DIM], 0.5))


def test_slots_without_values_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="same length"):
        table.set_slots(create(), owner="a", names=["a"], initial_values=[])


def test_a_replacement_that_does_not_fit_leaves_the_table():
    handle = table.create(2, eviction="least_recent", max_size=2)
    table.upsert(handle, [1, 2], tf.ones([2, 2]))
    rows = tf.zeros([3, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 2 keys"):
        table.replace([handle], [tf.constant([3, 4, 5], tf.int64)], [rows])
    assert int(table.size(handle)) == 2
    table.replace([handle], [tf.constant([3, 4, 3], tf.int64)], [rows])
    assert int(table.size(handle)) == 2


@pytest.mark.parametrize(
    ("owner", "names", "text"),
    [
        ("adam", ["my slot"], "without spaces; got 'my slot'"),
        ("adam", ["m", "m"], "names of their own"),
        ("adam", ["a\nb"], "without spaces"),
        ("", ["m"], "must be a word"),
    ],
)
def test_slots_whose_names_cannot_be_saved_are_refused(owner, names, text):
    handle = table.create(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        table.set_slots(
            handle,
            owner=owner,
            names=names,
            initial_values=[0.0] * len(names),
        )
    table.set_slots(handle, owner="adam", names=["m"], initial_values=[0.0])


def test_a_lookup_of_more_than_there_is_memory_for_is_refused():
    handle = table.create(2**20)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="rows of shape"):
        table.lookup(handle, tf.zeros([2**24], tf.int64), dim=2**20)
