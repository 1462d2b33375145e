"""The pairs of key and value dtypes that a `Variable` takes, and those it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import dynamic_embedding as de
from tfembed import errors, optimizers, policies, tables

NUMBERS = (
    tf.float32,
    tf.float16,
    tf.bfloat16,
    tf.int32,
    tf.int8,
    tf.int64,
    tf.float64,
)
PAIRS = (
    [(tf.int64, dtype) for dtype in NUMBERS]
    + [
        (tf.int32, dtype)
        for dtype in (tf.float32, tf.int32, tf.float64, tf.bfloat16)
    ]
    + [(tf.string, dtype) for dtype in (*NUMBERS, tf.bool)]
)


def keys_of(numbers, dtype):
    if dtype == tf.string:
        return tf.constant([str(n) for n in numbers])
    return tf.constant(numbers, dtype)


def rows_of(numbers, dtype, dim):
    rows = np.repeat(np.asarray(numbers)[:, None], dim, 1)
    return tf.cast(rows, dtype)


def numbers_of(keys):
    if keys.dtype == tf.string:
        keys = tf.strings.to_number(keys, tf.int64)
    return keys.numpy().tolist()


@pytest.fixture(
    params=[(*pair, dim) for pair in PAIRS for dim in (1, 8, 16, 128)],
    ids=lambda p: f"{p[0].name}-{p[1].name}-{p[2]}",
)
def filled(request):
    """A variable with keys 0..3 whose missing rows are -1."""
    key_dtype, value_dtype, dim = request.param
    v = de.Variable(
        key_dtype, value_dtype, dim, initializer=-1.0, name="spec_dtypes"
    )
    keys = keys_of(range(4), key_dtype)
    v.upsert(keys, rows_of(range(4), value_dtype, dim))
    return v


def test_row_01_a_new_variable_has_no_keys():
    size = de.Variable().size()
    assert size.dtype == tf.int64
    assert size.shape == []
    assert size.numpy() == 0


def test_rows_02_to_05_of_every_dtype_pair_and_width(filled):
    v = filled
    assert v.size().numpy() == 4

    v.remove(keys_of([1, 5], v.key_dtype))
    assert v.size().numpy() == 3

    values = v.lookup(keys_of([0, 1, 5], v.key_dtype))
    expected = rows_of([0, -1, -1], v.value_dtype, v.dim)
    assert values.dtype == v.value_dtype
    np.testing.assert_array_equal(values, expected)

    keys, values = v.export()
    assert keys.dtype == v.key_dtype
    numbers = numbers_of(keys)
    assert sorted(numbers) == [0, 2, 3]
    np.testing.assert_array_equal(
        values, rows_of(numbers, v.value_dtype, v.dim)
    )


def test_row_12_float_keys_of_an_int64_table_are_refused():
    v = de.Variable()
    with pytest.raises(ValueError, match="must be int64"):
        v.upsert(tf.constant([0.0]), [[1.0]])
    assert v.size().numpy() == 0


def test_row_13_string_values_of_an_int32_table_are_refused():
    v = de.Variable(tf.int64, tf.int32)
    with pytest.raises(ValueError, match="must be int32"):
        v.upsert([0], tf.constant([["a"]]))
    assert v.size().numpy() == 0


def test_row_14_keys_of_a_lookup_that_int64_does_not_hold_are_refused():
    for dtype in (tf.uint64, tf.float32, tf.string):
        keys = tf.zeros([1], dtype) if dtype != tf.string else tf.constant([""])
        with pytest.raises(ValueError, match="must be int64"):
            de.Variable().lookup(keys)


def test_row_15_keys_of_a_removal_that_do_not_fit_are_a_type_error():
    with pytest.raises(TypeError, match="must be int64"):
        de.Variable().remove(tf.constant([0.0]))
    with pytest.raises(TypeError, match="must be int32"):
        de.Variable(tf.int32).remove(tf.constant([0], tf.int64))


@pytest.mark.parametrize("dtype", [tf.int32, tf.int8, tf.uint32])
def test_narrower_integers_are_keys_where_tfra_refuses_them(dtype):
    v = de.Variable(dim=1)
    keys = tf.constant([1, 100], dtype)
    v.upsert(keys, [[1.0], [2.0]])
    v.accum(keys, [[1.0], [2.0]], [[3.0], [4.0]], [True, True])
    np.testing.assert_array_equal(v.lookup([keys, keys])[0], [[3.0], [4.0]])
    with tf.GradientTape() as tape:
        rows = de.embedding_lookup(v, keys, name="x")
    assert tape.gradient(rows, v).indices.dtype == tf.int64
    unique = de.embedding_lookup_unique(v, keys, name="u")
    np.testing.assert_array_equal(unique, rows)
    v.remove(keys[:1])
    assert v.table.keys().numpy().tolist() == [100]


def test_row_38_an_initializer_of_integers_is_cast_to_the_rows_dtype():
    start = tf.constant([-1, -2], tf.int64)
    v = de.Variable(tf.int64, tf.int32, 2, initializer=start)
    assert v.lookup([7]).numpy().tolist() == [[-1, -2]]


@pytest.mark.parametrize(
    ("key_dtype", "value_dtype"),
    [
        (tf.int32, tf.int64),
        (tf.int32, tf.half),
        (tf.int64, tf.bool),
        (tf.string, tf.string),
        (tf.uint64, tf.float32),
    ],
)
def test_row_42_other_pairs_are_a_type_error_with_the_valid_ones(
    key_dtype, value_dtype
):
    with pytest.raises(TypeError) as error:
        de.Variable(key_dtype, value_dtype)
    for keys, values in [*PAIRS, (tf.int64, tf.string)]:
        assert f"{keys.name}-{values.name}" in str(error.value)


def test_row_43_strings_are_keys_on_two_shards_the_empty_one_too():
    v = de.Variable(tf.string, dim=2, devices=["/CPU:0"] * 2, initializer=-1)
    names = ["", "a", "\0", "a\0", "a much longer key than twenty bytes", "ü"]
    v.upsert(names, rows_of(range(6), tf.float32, 2))
    assert v.size().numpy() == 6
    values = v.lookup([*names[::-1], "unknown"])
    np.testing.assert_array_equal(
        values, rows_of([5, 4, 3, 2, 1, 0, -1], tf.float32, 2)
    )


@pytest.mark.parametrize("shards", [1, 3])
def test_row_44_rows_may_be_strings_by_integer(shards):
    v = de.Variable(
        tf.int64,
        tf.string,
        dim=2,
        initializer="d",
        devices=["/CPU:0"] * shards,
    )
    long = "x" * 1000
    v.upsert([[1, -2], [3, 2**62]], [[["a", "b"], ["", "d"]]] * 2)
    v.upsert([3, 3], [["no", "no"], [long, "a\0b"]])
    assert int(v.size()) == 4
    rows, exists = v.lookup([[-2, 3, 4]], return_exists=True)
    assert rows.numpy().tolist() == [
        [[b"", b"d"], [long.encode(), b"a\0b"], [b"d", b"d"]]
    ]
    assert exists.numpy().tolist() == [[True, True, False]]
    assert v.lookup(tf.constant(1, tf.int64)).numpy().tolist() == [b"a", b"b"]

    v.remove([1, 7])
    keys, values = v.export()
    order = np.argsort(keys)
    assert keys.numpy()[order].tolist() == [-2, 3, 2**62]
    assert values.numpy()[order, 1].tolist() == [b"d", b"a\0b", b"d"]
    v.clear()
    assert int(v.size()) == 0
    assert v.lookup([3]).numpy().tolist() == [[b"d", b"d"]]


@pytest.mark.parametrize(
    "pair", PAIRS, ids=lambda p: f"{p[0].name}-{p[1].name}"
)
def test_accum_adds_in_the_rows_own_dtype(pair):
    v = de.Variable(*pair, dim=2)
    keys = keys_of([1, 2], pair[0])
    if pair[1] == tf.bool:
        with pytest.raises(errors.DtypeError, match="cannot be accumulated"):
            v.accum(keys, [[True] * 2] * 2, [[True] * 2] * 2, [False, False])
        return
    zeros, threes = (rows_of([n, n], pair[1], 2) for n in (0, 3))
    v.accum(keys, zeros, threes, [False, False])
    v.accum(keys, zeros, threes, [True, True])
    np.testing.assert_array_equal(v.lookup(keys), rows_of([6, 6], pair[1], 2))


def test_int8_rows_wrap_as_int8_does():
    v = de.Variable(tf.int64, tf.int8)
    v.upsert([1], tf.constant([[100]], tf.int8))
    v.accum(
        [1],
        tf.constant([[0]], tf.int8),
        tf.constant([[100]], tf.int8),
        [True],
    )
    assert v.lookup([1]).numpy().tolist() == [[-56]]


def test_integers_that_do_not_fit_a_dtype_are_refused():
    v = de.Variable(tf.int32, tf.int32)
    with pytest.raises(ValueError, match="int32"):
        v.upsert([2**31], [[1]])
    with pytest.raises(ValueError, match="int32"):
        v.upsert([1], [[2**31]])
    assert v.size().numpy() == 0


@pytest.mark.parametrize("value_dtype", [tf.float64, tf.int64])
def test_initial_rows_are_exact_and_of_integers_their_whole_part(value_dtype):
    v = de.Variable(tf.int64, value_dtype, initializer=-(2**40) - 0.1)
    expected = {"float64": -(2**40) - 0.1, "int64": -(2**40)}[value_dtype.name]
    assert v.lookup([3]).numpy().tolist() == [[expected]]


def uniform(low, high):
    return tf.random_uniform_initializer(low, high)


@pytest.mark.parametrize(
    ("value_dtype", "initializer", "number"),
    [
        (tf.int8, 300, 300),
        (tf.int8, [1, -129], -129),
        (tf.int8, tf.constant_initializer(128.5), 128),
        (tf.int32, 2**31, 2**31),
        (tf.int64, 2**63, 2**63),
        (tf.int8, uniform(0, 200), 199),
        (tf.int8, uniform(-130, 0), -130),
        (tf.int8, uniform(128, 128), 128),
    ],
)
def test_initial_numbers_beyond_those_of_integers_are_refused(
    value_dtype, initializer, number
):
    with pytest.raises(
        errors.ArgumentError,
        match=rf"`initializer` of table 'v'.*{value_dtype.name}.*got {number}\.",
    ):
        de.Variable(tf.int64, value_dtype, 2, name="v", initializer=initializer)


@pytest.mark.parametrize(
    ("value_dtype", "initializer"),
    [
        (tf.int8, [127, -128]),
        (tf.int8, [127.9, -128.9]),
        (tf.int64, -(2**63)),
        (tf.int8, uniform(-128, 128)),
        (tf.int32, tf.keras.initializers.RandomNormal(0.0, 1e20)),
        (tf.float32, 1e20),
    ],
)
def test_initial_numbers_that_rows_hold_are_taken(value_dtype, initializer):
    v = de.Variable(tf.int64, value_dtype, 2, initializer=initializer)
    assert v.lookup([3]).shape == [1, 2]


def test_row_33_accum_of_values_without_addition_is_refused():
    v = de.Variable(tf.string, tf.bool)
    v.upsert(["a"], [[True]])
    with pytest.raises(errors.DtypeError, match="cannot be accumulated"):
        v.accum(["a"], [[False]], [[True]], [True])
    assert v.lookup(["a", "b"]).numpy().tolist() == [[True], [False]]


@pytest.mark.parametrize("shards", [1, 2])
def test_strings_go_with_evicted_rows(shards):
    table = tables.HashTable(
        1, key_dtype=tf.string, name="t", devices=["/CPU:0"] * shards
    )
    table.upsert(["a", "b" * 50, "c"], [[1.0], [2.0], [3.0]])
    gone = table.evict(1, policy=policies.SmallestNorm())
    assert sorted(gone.keys.numpy()) == [b"a", b"b" * 50]
    assert table.keys().numpy().tolist() == [b"c"]


def test_strings_without_a_row_are_forgotten_in_time():
    table = tables.HashTable(1, key_dtype=tf.string, name="t")
    before = table.stats().index_bytes
    for batch in range(20):
        names = [f"{'x' * 100} {batch} {i}" for i in range(1000)]
        # Said to be there, they are not inserted.
        table.accum(names, np.ones([1000, 1], np.float32), [True] * 1000)
    assert table.size().numpy() == 0
    assert table.stats().index_bytes - before < 10_000 * 170


def test_rows_of_integers_have_no_optimizer():
    table = tables.HashTable(2, value_dtype="int32", name="t")
    with pytest.raises(TypeError, match="has rows of int32; only those of"):
        table.attach(optimizers.Adagrad())
