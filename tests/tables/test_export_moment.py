"""An export shows all shards of a table as of one moment."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tables.sgd_tables import table_of
from tfembed import policies
from tfembed.dynamic_embedding.tensorflow1.graph_saver import export_with_notes
from tfembed.ops import table as table_ops

SHARDS = 3


def written_in_turns(table, read, until):
    """Calls `read` while one key of each shard is written, in turns.

    It reads 40 times at least, and until `until(found)` or half a minute.

    Each round writes the number of the round to key 0, then to key 1, then to
    key 2, which are in different shards: at any moment their rows fall from one
    key to the next, and by 1 at most in all.
    """
    begun, stop = threading.Event(), threading.Event()

    @tf.function
    def write_rounds(first):
        # Functions order what is done to one shard, not to several.
        for number in tf.range(first, first + 20):
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)
            row = tf.fill([1, table.dim], tf.cast(number, tf.float32))
            done = []
            for key, handle in enumerate(table.handles):
                with tf.control_dependencies(done):
                    key = tf.constant([key], tf.int64)
                    done = [table_ops.upsert(handle, key, row)]

    def write():
        first = 1
        try:
            while not stop.is_set():
                write_rounds(tf.constant(first))
                first += 20
                begun.set()
        finally:
            begun.set()  # So that an error ends the test.

    thread = threading.Thread(target=write)
    thread.start()
    try:
        begun.wait()
        found = [read() for _ in range(40)]
        deadline = time.monotonic() + 30
        while not until(found) and time.monotonic() < deadline:
            found.append(read())
        return found
    finally:
        stop.set()
        thread.join()


def numbers_of(keys, values):
    keys, values = np.asarray(keys), np.asarray(values)
    assert (values == values[:, :1]).all()
    rows = dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))
    return [rows[key] for key in range(SHARDS)]


def is_of_one_moment(numbers):
    return (
        sorted(numbers, reverse=True) == numbers
        and numbers[0] - numbers[-1] <= 1
    )


def has_moved(found):
    return found[0] != found[-1]


def large_table(**options):
    table = table_of(SHARDS, dim=8, **options)
    keys = np.arange(60_000)
    table.upsert(keys, np.zeros([len(keys), 8]))
    return table


@pytest.mark.parametrize("in_function", [False, True])
def test_an_export_is_of_one_moment_of_all_shards(in_function):
    table = large_table()
    export = tf.function(table.export) if in_function else table.export

    found = written_in_turns(table, lambda: numbers_of(*export()), has_moved)

    assert all(is_of_one_moment(numbers) for numbers in found), found
    assert has_moved(found)


def test_exports_of_one_shard_after_the_other_are_not():
    """The test above tells such exports apart from others."""
    table = large_table()

    def read():
        parts = [table_ops.snapshot([handle]) for handle in table.handles]
        return numbers_of(*(tf.concat(p, 0) for p in list(zip(*parts))[:2]))

    def is_torn(found):
        return not all(is_of_one_moment(numbers) for numbers in found)

    assert is_torn(written_in_turns(table, read, is_torn))


def test_what_policies_noted_is_of_the_same_moment():
    table = large_table(eviction=policies.LeastFrequent())
    for key in range(SHARDS):  # As often as in a round of the other thread.
        table.remove([key])

    def read():
        keys, _, notes, *_ = export_with_notes(table)
        writes = dict(zip(keys.numpy().tolist(), notes.numpy(), strict=True))
        return [int(writes.get(key, 0)) for key in range(SHARDS)]

    found = written_in_turns(table, read, has_moved)

    assert has_moved(found)
    assert all(is_of_one_moment(numbers) for numbers in found), found


def test_rows_come_shard_after_shard():
    table = table_of(SHARDS)
    keys = np.arange(1000)
    table.upsert(keys, np.repeat(keys[:, None], 2, 1).astype(np.float32))

    found, values = table.export()

    np.testing.assert_array_equal(values[:, 0], tf.cast(found, tf.float32))
    np.testing.assert_array_equal(
        np.sort(found.numpy() % SHARDS), found % SHARDS
    )
    for shard in range(SHARDS):
        np.testing.assert_array_equal(
            table.export_columns(shard)[0],
            found.numpy()[found.numpy() % SHARDS == shard],
        )


@pytest.mark.parametrize("key_dtype", ["int32", "string"])
def test_keys_of_each_shard_are_named_by_their_own(key_dtype):
    keys = tf.constant([5, 6, 7])
    if key_dtype == "string":
        keys = tf.strings.as_string(keys)
    seven = keys[2].numpy()
    table = table_of(
        2,
        key_dtype=key_dtype,
        partitioner=lambda keys, n: tf.cast(tf.equal(keys, seven), tf.int32),
    )
    table.upsert(keys, tf.constant([[5.0, 5], [6, 6], [7, 7]]))

    found, values = table.export()

    assert found.dtype == key_dtype
    assert {int(k): v[0] for k, v in zip(found.numpy(), values.numpy())} == {
        5: 5,
        6: 6,
        7: 7,
    }
    assert int(found[-1].numpy()) == 7


@pytest.mark.parametrize(
    "options",
    [{"dim": 3}, {"eviction": policies.LeastFrequent()}],
    ids=["another dim", "another policy"],
)
def test_tables_that_are_no_shards_of_one_are_refused(options):
    one, other = table_of(1), table_of(1, **options)
    with pytest.raises(tf.errors.InvalidArgumentError, match="of one table"):
        table_ops.snapshot([one.handle, other.handle])


def test_a_table_that_is_given_twice_is_refused():
    table = table_of(1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="'t' twice"):
        table_ops.snapshot([table.handle, table.handle])


def test_tables_of_other_dtypes_are_refused():
    one, other = table_of(1), table_of(1, key_dtype="int32")
    with pytest.raises(tf.errors.InvalidArgumentError, match="int32"):
        table_ops.snapshot([one.handle, other.handle])


def sizes_during(change, table, times):
    """How many keys exports have while `change()` runs so many times."""
    changing = threading.Thread(target=lambda: [change() for _ in range(times)])
    changing.start()
    sizes = set()
    while changing.is_alive():
        sizes.add(len(table.export()[0]))
    changing.join()
    return sizes


@pytest.mark.parametrize("shards", [1, SHARDS])
def test_no_export_or_save_shows_a_part_of_a_restore(shards, tmp_path):
    table = table_of(shards, dim=8)
    keys = np.arange(60_000)
    table.upsert(keys, np.ones([len(keys), 8]))
    checkpoint = tf.train.Checkpoint(table=table)
    path = checkpoint.save(str(tmp_path / "c"))
    saved = []

    def restore_and_save():
        restoring = threading.Thread(target=checkpoint.restore, args=(path,))
        restoring.start()
        saved.append(tf.train.Checkpoint(table=table).write(f"{path}-again"))
        restoring.join()

    assert sizes_during(restore_and_save, table, 5) == {60_000}
    table.clear()
    tf.train.Checkpoint(table=table).read(saved[-1])
    assert int(table.size()) == 60_000


def test_no_export_shows_a_part_of_what_is_replaced_or_cleared():
    table = table_of(SHARDS, dim=8)
    few, many = (tf.range(n, dtype=tf.int64) for n in (300, 30_000))

    @tf.function
    def replace(keys):
        table.replace(keys, [tf.zeros([tf.size(keys), 8])])

    def change():
        replace(many)
        replace(few)
        replace(many)
        table.clear()

    change()
    assert sizes_during(change, table, 20) <= {0, 300, 30_000}
