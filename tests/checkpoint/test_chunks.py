"""Tables of more than one chunk: 2 MB of full rows."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from saved_models import assert_same_content, content, model_of, trained_model
from tfembed import optimizers

# Rows of 2 * 32 floats: about 8,000 make a chunk.
OPTIONS = {"dim": 32, "optimizer": optimizers.Adagrad(0.1)}
NUM_KEYS = 150_000


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model of two shards, some chunks each, and where it was saved."""
    model = trained_model(NUM_KEYS, num_shards=2, **OPTIONS)
    directory = tmp_path_factory.mktemp("chunks")
    path = tf.train.Checkpoint(model=model).write(str(directory / "ckpt"))
    return model, path


def by_hundreds(keys, num_shards):
    return (keys // 100) % num_shards


@pytest.mark.parametrize("partitioner", [None, by_hundreds])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_all_chunks_are_restored(saved, num_shards, partitioner):
    model, path = saved
    restored = model_of(num_shards, partitioner=partitioner, **OPTIONS)

    tf.train.Checkpoint(model=restored).read(path).assert_consumed()

    assert_same_content(content(restored.table), content(model.table))
    keys = content(model.table)["keys"][::7]
    assert restored.table.lookup(keys)[1].numpy().all()


@pytest.mark.parametrize("num_keys", [10, NUM_KEYS, 3 * NUM_KEYS])
def test_what_was_there_before_is_gone(saved, num_keys):
    model, path = saved
    live = trained_model(num_keys, num_shards=2, **OPTIONS)
    unknown = np.arange(10**9, 10**9 + 50_000)
    live.table.upsert(unknown, np.ones([len(unknown), 32]))

    for _ in range(2):
        tf.train.Checkpoint(model=live).read(path).assert_consumed()

        assert_same_content(content(live.table), content(model.table))
        assert not live.table.lookup(unknown)[1].numpy().any()
    live.table.upsert(unknown, np.ones([len(unknown), 32]))
    assert (live.table.lookup(unknown)[0].numpy() == 1).all()
    assert int(live.table.size()) == NUM_KEYS + len(unknown)


def test_tensorflow_reads_slices_as_one_tensor(saved):
    model, path = saved
    reader = tf.train.load_checkpoint(path)

    keys = reader.get_tensor("model/table/.ATTRIBUTES/keys")
    values = reader.get_tensor("model/table/.ATTRIBUTES/values")

    expected = content(model.table)
    np.testing.assert_array_equal(np.sort(keys), expected["keys"])
    np.testing.assert_array_equal(values[np.argsort(keys)], expected["values"])


def test_a_flipped_byte_of_the_last_chunk_is_found_before_any_change(saved):
    path = pathlib.Path(saved[1])
    file = max(path.parent.glob("ckpt.data-*"), key=lambda p: p.stat().st_size)
    live = trained_model(100, num_shards=2, **OPTIONS)
    before = content(live.table)
    with file.open("r+b") as data:
        data.seek(-3, 2)
        good = data.read(1)
        data.seek(-3, 2)
        data.write(bytes([good[0] ^ 4]))
    try:
        with pytest.raises(tf.errors.DataLossError, match="'user'.*rows"):
            tf.train.Checkpoint(model=live).read(str(path))
    finally:
        with file.open("r+b") as data:
            data.seek(-3, 2)
            data.write(good)

    assert_same_content(content(live.table), before)


def test_training_beside_a_save_does_not_tear_it(saved, tmp_path):
    """A row is of one moment: all its columns and slots are equal."""
    import threading

    model = model_of(2, dim=32, optimizer=optimizers.SGD(1.0))
    keys = np.arange(100_000)
    model.table.upsert(keys, np.zeros([len(keys), 32]))
    stop = threading.Event()

    def train():
        step = 0
        while not stop.is_set():
            step += 1
            new = np.arange(10**6 + 1000 * step, 10**6 + 1000 * (step + 1))
            batch = np.concatenate([keys[:: 1 + step % 5], new])
            model.table.apply_gradients(batch, np.ones([len(batch), 32]))

    thread = threading.Thread(target=train)
    thread.start()
    try:
        paths = [
            tf.train.Checkpoint(model=model).write(str(tmp_path / f"c{i}"))
            for i in range(5)
        ]
    finally:
        stop.set()
        thread.join()

    for path in paths:
        restored = model_of(dim=32)
        tf.train.Checkpoint(model=restored).read(path).assert_consumed()
        found = content(restored.table)
        assert len(found["keys"]) >= len(keys)
        assert len(np.unique(found["keys"])) == len(found["keys"])
        assert (found["values"] == found["values"][:, :1]).all()
