"""Variables in checkpoints and SavedModels: rows, slots and seeds come back."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de


def variable(shards=1, dim=2):
    return de.Variable(dim=dim, devices=["/CPU:0"] * shards, name="saved")


def test_row_79_a_restore_replaces_the_content(tmp_path):
    v = variable()
    v.upsert(range(4), np.ones([4, 2], np.float32))
    saved = tf.train.Checkpoint(v=v).save(tmp_path / "c")
    v.clear()
    v.upsert([99], [[1.0, 1.0]])

    tf.train.Checkpoint(v=v).restore(saved)

    assert sorted(v.export()[0].numpy()) == [0, 1, 2, 3]


@pytest.mark.parametrize("shards", [(2, 3), (3, 1), (1, 2), (2, 3, 1)])
def test_row_80_every_key_is_found_in_any_number_of_shards(tmp_path, shards):
    keys = [*range(6), -1, -(2**63), 2**63 - 1]
    rows = np.arange(2.0 * len(keys), dtype=np.float32).reshape(-1, 2)
    v = variable(shards[0])
    v.upsert(keys, rows)

    for n in shards[1:]:
        saved = tf.train.Checkpoint(v=v).write(str(tmp_path / f"c{n}"))
        v = variable(n)
        tf.train.Checkpoint(v=v).read(saved).assert_consumed()

    values, exists = v.lookup(keys, return_exists=True)
    assert exists.numpy().all()
    np.testing.assert_array_equal(values, rows)
    assert int(v.size()) == len(keys)


def read_export(v, folder):
    del folder
    return (x.numpy() for x in v.export())


def read_files(v, folder):
    v.save_to_file_system(folder)
    w = variable(dim=v.dim)
    w.load_from_file_system_with_restore_function(folder)
    return (x.numpy() for x in w.export())


@pytest.mark.parametrize("read", [read_export, read_files])
@pytest.mark.parametrize("shards", [1, 2])
def test_row_88_an_export_beside_writers_has_whole_rows_only(
    tmp_path, read, shards
):
    # A writer's batch is one number in all rows of its keys; key k < 100 is
    # always there, and rows never mix two batches.
    v = variable(shards, dim=16)
    keys, more = np.arange(100), np.arange(100, 3000)
    v.upsert(keys, np.zeros([100, 16], np.float32))
    stop = threading.Event()

    def write():
        number = 1
        while not stop.is_set():
            v.upsert(keys, np.full([100, 16], number, np.float32))
            v.upsert(more, np.full([len(more), 16], -number, np.float32))
            v.remove(tf.constant(more))
            number += 1

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(10):
            found, rows = read(v, tmp_path)
            assert len(set(found)) == len(found) == len(rows)
            assert set(keys) <= set(found) <= set(range(3000))
            assert (rows == rows[:, :1]).all()
            assert ((rows[:, 0] < 0) == (found >= 100)).all()
    finally:
        stop.set()
        for writer in writers:
            writer.join()
