"""HashTable: content, shards, shapes, dtypes, functions and pipelines."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

from tfembed import errors
from tfembed.tables import HashTable

KEYS = np.array([3, -1, 2**63 - 1, -(2**63), 0, 12], np.int64)
DIM = 2
INITIAL = -1.5


def rows_of(keys, dim=DIM):
    """Distinct rows, exact in float32."""
    return (np.arange(np.size(keys) * dim) / 4).reshape(*np.shape(keys), dim)


def table_of(num_shards=1, **options):
    options = {"name": "t", "initializer": INITIAL, **options}
    return HashTable(DIM, devices=["/CPU:0"] * num_shards, **options)


@pytest.fixture(params=[1, 2, 3])
def table(request):
    return table_of(request.param)


def test_written_rows_are_read_back_whatever_the_number_of_shards(table):
    table.upsert(KEYS, rows_of(KEYS))

    values, exists = table.lookup(KEYS[::-1])

    np.testing.assert_array_equal(values, rows_of(KEYS)[::-1])
    assert exists.numpy().all()
    assert int(table.size()) == len(KEYS)


def test_a_missing_key_reads_its_initial_row_and_is_not_inserted(table):
    values, exists = table.lookup([[5, 6]])

    np.testing.assert_array_equal(values, np.full([1, 2, DIM], INITIAL))
    assert not exists.numpy().any()
    assert int(table.size()) == 0


@pytest.mark.parametrize("shape", [(), (0,), (6,), (2, 3), (3, 1, 2), (0, 4)])
def test_keys_may_have_any_shape(table, shape):
    keys = np.resize(KEYS, shape)

    table.upsert(keys, rows_of(keys))
    values, exists = table.lookup(tf.constant(keys))

    np.testing.assert_array_equal(values, rows_of(keys))
    assert values.shape == (*shape, DIM)
    assert exists.shape == shape


def test_of_a_repeated_key_the_last_row_stays(table):
    table.upsert([7, 8, 7], [[1, 1], [2, 2], [3, 3]])

    np.testing.assert_array_equal(table.lookup([7])[0], [[3, 3]])


def test_accum_follows_what_a_lookup_said(table):
    table.upsert([1, 2], [[1, 1], [2, 2]])

    table.accum(
        [1, 2, 3, 4],
        [[10, 10], [20, 20], [30, 30], [40, 40]],
        [True, False, False, True],
    )

    values, exists = table.lookup([1, 2, 3, 4])
    np.testing.assert_array_equal(
        values, [[11, 11], [2, 2], [30, 30], [INITIAL, INITIAL]]
    )
    np.testing.assert_array_equal(exists, [True, True, True, False])


@pytest.mark.parametrize(
    ("exists", "got"),
    [
        ([1, 1], "int64"),
        (np.array([1, 0]), "int64"),
        (tf.constant([1.0, 0.0]), "a tensor of dtype float32"),
    ],
)
def test_accum_takes_no_numbers_for_what_a_lookup_said(table, exists, got):
    with pytest.raises(
        errors.DtypeError, match=f"`exists` of.* must be bool.*{got}"
    ):
        table.accum([1, 2], [[10, 10], [20, 20]], exists)

    assert int(table.size()) == 0


def test_removed_and_cleared_keys_are_gone(table):
    table.upsert(KEYS, rows_of(KEYS))

    table.remove([[3, 99]])
    assert int(table.size()) == len(KEYS) - 1
    table.clear()

    assert int(table.size()) == 0
    assert not table.lookup(KEYS)[1].numpy().any()


def test_export_gives_all_keys_with_their_values(table):
    table.upsert(KEYS, rows_of(KEYS))

    keys, values = table.export()

    order = np.argsort(keys)
    np.testing.assert_array_equal(keys.numpy()[order], np.sort(KEYS))
    np.testing.assert_array_equal(
        values.numpy()[order], rows_of(KEYS)[np.argsort(KEYS)]
    )


def test_keys_are_dealt_to_shards_by_remainder():
    table = table_of(3)

    table.upsert(np.arange(10), rows_of(np.arange(10)))

    assert [int(table.size(i)) for i in range(3)] == [4, 3, 3]


def test_a_partitioner_deals_keys_to_shards():
    table = table_of(3, partitioner=lambda keys, n: keys % 2)

    table.upsert(np.arange(5), rows_of(np.arange(5)))

    assert [int(table.size(i)) for i in range(3)] == [3, 2, 0]
    np.testing.assert_array_equal(
        table.lookup([1, 3, 2])[0], rows_of(np.arange(5))[[1, 3, 2]]
    )


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("shard", [-1, 2])
def test_a_shard_that_is_not_there_is_refused_before_any_change(traced, shard):
    table = table_of(
        2,
        partitioner=lambda keys, n: tf.where(
            keys == 9, tf.constant(shard, tf.int64), keys % 2
        ),
    )
    upsert = tf.function(table.upsert) if traced else table.upsert

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"(?s)table .{0,2}t.*\[0, 2\)"
    ):
        upsert(np.array([1, 2, 9]), rows_of([1, 2, 9]).astype(np.float32))

    assert int(table.size()) == 0


@pytest.mark.parametrize("shape", [(4,), (2, 3), (3, 1), (3,)])
def test_values_of_another_shape_are_refused_before_any_change(table, shape):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"'t'.*\[3, 2\]|shape"
    ):
        table.upsert([1, 2, 3], np.zeros(shape, np.float32))

    assert int(table.size()) == 0


@pytest.mark.parametrize(
    "keys",
    [
        [1.5],
        ["a"],
        tf.constant([1.0]),
        np.array([1], np.uint64),
        tf.constant([True]),
    ],
)
def test_keys_of_another_dtype_are_refused(table, keys):
    with pytest.raises(errors.DtypeError, match="'t'"):
        table.lookup(keys)


def test_values_of_another_dtype_are_refused(table):
    with pytest.raises(errors.DtypeError, match="'t'.*float64"):
        table.upsert([1], tf.constant([[1.0, 2.0]], tf.float64))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"dim": -1},
            "`dim` must be an integer of at least 0; got -1 for table 't'",
        ),
        ({"dim": 2.5}, "`dim`"),
        ({"name": ""}, "`name`"),
        ({"devices": []}, "`devices`"),
        ({"devices": "/CPU:0"}, "`devices`"),
        ({"seed": 2**63}, "`seed`"),
        ({"init_size": -1}, "`init_size`"),
        ({"init_size": 10**30}, "`init_size`"),
        ({"initializer": [1.0, 2.0, 3.0]}, "3 elements"),
    ],
)
def test_bad_options_are_refused(options, text):
    options = {"dim": DIM, "name": "t", **options}

    with pytest.raises(errors.ArgumentError, match=text):
        HashTable(options.pop("dim"), **options)


def test_a_gpu_device_is_refused():
    with pytest.raises(errors.UnsupportedError, match="host memory.*GPU:0"):
        HashTable(DIM, name="t", devices=["/GPU:0"])


def test_functions_keep_the_order_of_the_program(table):
    @tf.function
    def program(keys, values):
        table.upsert(keys, values)
        first = table.lookup(keys)[0]
        table.remove(keys[:1])
        return first, table.lookup(keys)[1], table.size()

    first, exists, size = program(
        tf.constant(KEYS), tf.constant(rows_of(KEYS), tf.float32)
    )

    np.testing.assert_array_equal(first, rows_of(KEYS))
    np.testing.assert_array_equal(exists, [False] + [True] * 5)
    assert int(size) == 5


def test_a_function_is_traced_once_however_many_keys_there_are(table):
    traces = []

    @tf.function(reduce_retracing=True)
    def lookup(keys):
        traces.append(keys)
        return table.lookup(keys)[0]

    for n in (1, 2, 3, 50):
        assert lookup(tf.range(n, dtype=tf.int64)).shape == (n, DIM)

    assert len(traces) <= 2


def test_a_pipeline_reads_the_table(table):
    table.upsert(KEYS, rows_of(KEYS))
    dataset = tf.data.Dataset.from_tensor_slices(KEYS).batch(2)

    batches = list(
        dataset.map(lambda k: table.lookup(k)[0], num_parallel_calls=2)
    )

    np.testing.assert_array_equal(tf.concat(batches, 0), rows_of(KEYS))


def function_of_a_table():
    made = table_of()
    made.upsert([3], [[4, 5]])
    return tf.function(lambda keys: made.lookup(keys)[0]).get_concrete_function(
        tf.TensorSpec([None], tf.int64)
    )


def test_a_function_keeps_the_tables_that_it_reads():
    lookup = function_of_a_table()
    gc.collect()

    np.testing.assert_array_equal(lookup(tf.constant([3], tf.int64)), [[4, 5]])


def test_a_table_made_inside_of_a_function_outlives_the_trace():
    made = []

    @tf.function
    def lookup(keys):
        if not made:
            made.append(table_of(2))
        return made[0].lookup(keys)[0]

    lookup(tf.constant([1], tf.int64))
    made[0].upsert([1], [[4, 5]])

    np.testing.assert_array_equal(lookup(tf.constant([1], tf.int64)), [[4, 5]])


def test_stats_count_keys_and_bytes(table):
    keys = np.arange(5000)
    table.upsert(keys, rows_of(keys))

    stats = table.stats()

    assert stats.size == 5000
    assert stats.capacity >= 5000
    assert stats.row_bytes >= 5000 * DIM * 4
    assert table.bytes_per_key == pytest.approx(
        (stats.index_bytes + stats.row_bytes) / 5000
    )


def test_a_copy_in_memory_is_refused_with_the_way_out(table):
    import copy

    with pytest.raises(errors.StateError, match="'t' cannot be copied"):
        copy.deepcopy(table)


def test_a_pickle_is_refused_with_the_way_out(table):
    import pickle

    with pytest.raises(errors.StateError, match="'t' cannot be pickled"):
        pickle.dumps(table)


def test_a_table_says_what_it_is(table):
    words = repr(table)
    assert words.startswith(f"<HashTable 't': int64 -> float32 [{DIM}], 0 rows")
    shards = f", {len(table.shards)} shards>" if len(table.shards) > 1 else ">"
    assert words.endswith(shards)
