"""Checkpoints of tables on several devices, each of which writes its rows.

Devices of this process stand for servers: tests/clusters has some of these.
"""

from __future__ import annotations

import uuid

import numpy as np
import pytest
import tensorflow as tf

from tfembed import optimizers, policies
from tfembed.ops import library
from tfembed.tables import HashTable, StringTable

HERE, APART, THREE = (
    ["/CPU:0"],
    ["/CPU:0", "/CPU:1", "/CPU:0"],
    ["/CPU:2", "/CPU:0", "/CPU:1"],
)


def by_length(keys, num_shards):
    return tf.strings.length(tf.strings.as_string(keys)) % num_shards


def table(devices, **options):
    made = HashTable(
        2, name="apart", initializer=1.0, devices=devices, **options
    )
    made.attach(optimizers.Adagrad(0.5))
    return made


def filled(devices, count=5000, **options):
    made = table(devices, **options)
    keys = tf.range(count, dtype=tf.int64) * 7 - 100
    if made.key_dtype == tf.string:
        keys = tf.strings.as_string(keys)
    for _ in range(2):
        made.apply_gradients(
            keys, tf.random.stateless_normal([count, 2], [1, 2])
        )
    return made


def content(made):
    keys, *columns = made.export_columns()
    order = tf.argsort(
        tf.strings.to_number(keys) if keys.dtype == tf.string else keys
    )
    return [tf.gather(column, order).numpy() for column in (keys, *columns)]


def moved(tmp_path, saved, restored):
    path = tf.train.Checkpoint(table=saved).save(str(tmp_path / "c"))
    tf.train.Checkpoint(table=restored).restore(path).assert_consumed()
    return path


# The kind: what one op does to shards of one device, several ops do together.
# Looked at too: tables of strings, exports (not of one moment over devices), raw
# files (refused), Savers of graphs (which gather).
@pytest.mark.parametrize("options", [
    {}, {"key_dtype": tf.string}, {"partitioner": by_length},
], ids=["remainder", "strings", "partitioner"])  # fmt: skip
@pytest.mark.parametrize(
    ("before", "after"), [(APART, HERE), (HERE, APART), (APART, THREE)]
)
def test_any_devices_restore_what_others_saved(
    tmp_path, before, after, options
):
    saved, restored = filled(before, **options), table(after, **options)

    moved(tmp_path, saved, restored)

    for found, expected in zip(content(restored), content(saved), strict=True):
        np.testing.assert_array_equal(found, expected)
    left = {path.name.split("-0")[0] for path in tmp_path.iterdir()}
    assert left == {"checkpoint", "c-1.data", "c-1.index"}


@pytest.mark.parametrize("count", [0, 1])
def test_devices_without_rows_save_none(tmp_path, count):
    saved, restored = filled(APART, count), filled(HERE)

    moved(tmp_path, saved, restored)

    assert restored.size() == count


def test_waiting_keys_and_counters_are_saved_by_their_devices(tmp_path):
    options = {
        "admission": policies.BloomAdmission(3, capacity=1000, error_rate=0.01)
    }
    saved, restored = filled(APART, 50, **options), table(APART, **options)

    moved(tmp_path, saved, restored)
    keys = tf.range(50, dtype=tf.int64) * 7 - 100
    restored.apply_gradients(keys, tf.ones([50, 2]))

    assert restored.size() == 50


def test_a_smaller_bound_keeps_the_best_rows_of_each_device(tmp_path):
    options = {"eviction": policies.SmallestNorm()}
    saved = table(APART, **options)
    keys = tf.range(300, dtype=tf.int64)
    saved.upsert(keys, tf.cast(keys, tf.float32)[:, None] * [1.0, 0.0])
    for partitioner in (None, lambda keys, n: keys % n):
        restored = table(THREE, max_size=30, partitioner=partitioner, **options)

        moved(tmp_path, saved, restored)

        assert content(restored)[0].tolist() == list(range(270, 300))


def test_a_table_of_one_device_is_saved_beside_one_of_several(tmp_path):
    model, other = tf.Module(), tf.Module()
    model.here, model.apart = filled(["/CPU:1"], 20), filled(APART, 30)
    model.words = StringTable(1, name="words", devices=APART)
    model.words.upsert([1, 2], [["a"], ["b"]])
    other.here, other.apart = table(THREE), table(HERE)
    other.words = StringTable(1, name="words", devices=HERE)

    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()

    sizes = [int(other.here.size()), int(other.apart.size())]
    assert [*sizes, int(other.words.size())] == [20, 30, 2]


def test_a_damaged_file_changes_no_device(tmp_path):
    path = tf.train.Checkpoint(table=filled(APART)).save(str(tmp_path / "c"))
    data = max(tmp_path.glob("*.data*"), key=lambda file: file.stat().st_size)
    content_of = bytearray(data.read_bytes())
    content_of[len(content_of) // 2] ^= 1
    data.write_bytes(content_of)
    restored = filled(THREE, 7)

    with pytest.raises(tf.errors.DataLossError, match="apart"):
        tf.train.Checkpoint(table=restored).restore(path)

    assert restored.size() == 7


def test_a_saved_model_of_several_devices_is_loaded(tmp_path):
    model = tf.Module()
    model.table = filled(APART, 9)
    model.rows = tf.function(
        lambda keys: model.table.lookup(keys)[0],
        [tf.TensorSpec([None], tf.int64)],
    )
    tf.saved_model.save(model, str(tmp_path / "m"))

    loaded = tf.saved_model.load(str(tmp_path / "m"))

    keys = tf.range(9, dtype=tf.int64) * 7 - 100
    np.testing.assert_array_equal(loaded.rows(keys), model.rows(keys))


def test_a_folder_that_an_owner_does_not_see_is_refused(tmp_path):
    made = filled(HERE, 3)

    with pytest.raises(tf.errors.FailedPreconditionError, match="shared file"):
        library.load().tfembed_table_save(
            made.handles, str(tmp_path / "c"), tensor_names=["a"],
            shard_counts=[1], shard_numbers=[0], all_shards=[2],
            owners=["/job:ps/task:0", "/job:ps/task:1"], owner=0,
            token=uuid.uuid4().hex,
        )  # fmt: skip

    assert list(tmp_path.iterdir()) == []
