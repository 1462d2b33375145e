"""tfembed.checkpoint.verify, and damaged tables with a fixed vocabulary."""

from __future__ import annotations

import contextlib
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from saved_models import trained_model
from tfembed import checkpoint, errors
from tfembed.ops.checkpoint import check_sizes

SHAPE = (2000, 3)


@pytest.fixture
def path(tmp_path):
    """A checkpoint with a static table, strings and a hash table in slices."""
    model = trained_model(500, num_shards=2)
    model.static = tf.Variable(tf.reshape(tf.range(6000.0), SHAPE))
    model.words = tf.Variable(["some", "strings"])
    saved = tf.train.Checkpoint(model=model)
    return pathlib.Path(saved.write(str(tmp_path / "ckpt")))


def files_of(path):
    return sorted(path.parent.glob("ckpt.*"))


def test_a_whole_checkpoint_passes(path):
    checkpoint.verify(path)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("part", np.linspace(0.0, 0.9999, 9))
def test_a_flipped_byte_of_a_data_file_is_named(path, number, part):
    file = files_of(path)[number]
    data = bytearray(file.read_bytes())
    data[int(part * len(data))] ^= 1
    file.write_bytes(bytes(data))

    with pytest.raises(
        errors.CheckpointError, match=f"'{file}' is damaged.*tensor"
    ):
        checkpoint.verify(path)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.9999])
def test_a_file_that_was_cut_off_is_named(path, number, part):
    file = files_of(path)[number]
    data = file.read_bytes()
    file.write_bytes(data[: int(part * len(data))])

    with pytest.raises(
        errors.CheckpointError, match=f"'{file}' is damaged or cut"
    ):
        checkpoint.verify(path)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_file_is_named(path, number):
    file = files_of(path)[number]
    file.unlink()

    with pytest.raises(ValueError, match=f"{file}.*No such file"):
        checkpoint.verify(path)


def test_a_flipped_byte_of_the_index_is_found_or_does_not_matter(path):
    index = files_of(path)[2]
    good = index.read_bytes()
    restored = tf.Variable(tf.zeros(SHAPE))
    unread = 0
    for position in range(0, len(good), 7):
        data = bytearray(good)
        data[position] ^= 1
        index.write_bytes(bytes(data))
        try:
            checkpoint.verify(path)
        except errors.CheckpointError as error:
            assert str(index) in str(error)
            continue
        unread += 1
        model = tf.Module()
        model.static = restored
        tf.train.Checkpoint(model=model).read(str(path)).expect_partial()
        np.testing.assert_array_equal(
            tf.reshape(restored, [-1]), np.arange(6000)
        )

    assert unread < len(good) / 7 / 3


def test_a_static_tables_flipped_byte_is_refused_by_tensorflow_too(path):
    file = files_of(path)[1]
    data = file.read_bytes()
    at = data.index(np.arange(1000, 1010, dtype=np.float32).tobytes())
    file.write_bytes(data[:at] + b"x" + data[at + 1 :])
    model = tf.Module()
    model.static = tf.Variable(tf.zeros(SHAPE))

    with pytest.raises(tf.errors.DataLossError):
        tf.train.Checkpoint(model=model).read(str(path))

    np.testing.assert_array_equal(model.static, np.zeros(SHAPE))


def test_a_static_table_of_another_width_is_refused(path):
    model = tf.Module()
    model.static = tf.Variable(tf.zeros([2000, 4]))

    with pytest.raises(ValueError, match=r"\(2000, 3\).*\(2000, 4\)"):
        tf.train.Checkpoint(model=model).read(str(path))

    np.testing.assert_array_equal(model.static, np.zeros([2000, 4]))


@pytest.mark.parametrize(
    "around", [contextlib.nullcontext, lambda: tf.Graph().as_default()]
)
def test_sizes_are_checked_without_a_session(path, monkeypatch, around):
    monkeypatch.setattr(tf.compat.v1, "Session", None)
    with around():
        check_sizes(str(path))
        files_of(path)[0].write_bytes(b"")
        with pytest.raises(tf.errors.DataLossError):
            check_sizes(str(path))
