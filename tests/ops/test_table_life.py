"""How a table comes and goes: options, names, memory."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tfembed.ops import table


def create(keys=(), *, dim=2, **options):
    """A table with rows of ones."""
    handle = table.create(dim, name="user", **options)
    table.upsert(handle, tf.constant(keys, tf.int64), tf.ones([len(keys), dim]))
    return handle


def test_stats_count_keys_and_bytes():
    handle = create(range(1000), dim=16)
    stats = [int(s) for s in table.stats(handle)]
    assert stats[0] == 1000
    assert stats[1] >= 1000
    assert stats[2] >= 1000 * 8
    assert stats[3] >= 1000 * 16 * 4


@pytest.mark.parametrize(
    "options",
    [
        {"dim": -1},
        {"dim": -1},
        {"initializer": "magic"},
        {"initializer": "uniform", "initializer_args": [1.0]},
        {"init_size": -1},
    ],
)
def test_tables_that_cannot_be_are_refused(options):
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        table.create(**{"dim": 2, **options})


def test_a_handle_of_something_else_is_refused():
    variable = tf.Variable([[1.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="TableResource"):
        table.size(variable.handle)


def test_a_shared_name_finds_the_same_table_again():
    create([1], shared_name="test_table_shared")
    again = table.create(2, shared_name="test_table_shared")
    assert table.size(again).numpy() == 1
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="dim 2; got dim 3"
    ):
        table.create(3, shared_name="test_table_shared")


def test_tables_without_a_shared_name_are_different():
    create([1])
    assert table.size(create()).numpy() == 0


def resident_bytes():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_the_memory_of_a_table_goes_with_its_last_handle():
    handle = table.create(4096)
    for part in range(8):
        keys = np.arange(part * 1000, (part + 1) * 1000)
        table.upsert(handle, keys, tf.ones([1000, 4096]))
    full = resident_bytes()
    other = tf.identity(handle)
    del handle
    assert table.size(other).numpy() == 8000
    del other
    assert resident_bytes() < full - 100e6


def test_a_table_has_the_room_that_was_asked_for():
    handle = table.create(2, init_size=12345)
    assert int(table.stats(handle).capacity) >= 12345
    table.upsert(handle, tf.range(20000, dtype=tf.int64), tf.ones([20000, 2]))
    assert table.size(handle).numpy() == 20000
