"""TFRA's names of stores: the one in memory works, others say what to do."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import errors


@pytest.mark.parametrize(
    "creator",
    [
        de.CuckooHashTableCreator(),
        de.CuckooHashTableCreator(config=de.CuckooHashTableConfig()),
        de.CuckooHashTableCreator(saver=de.FileSystemSaver()),
        de.CuckooHashTableCreator(saver=de.FileSystemSaver(1, 0, None, 100)),
    ],
)
def test_a_variable_takes_the_creator_of_the_table_in_memory(tmp_path, creator):
    v = de.Variable(name="kv", kv_creator=creator)
    v.upsert([1], [[2.0]])
    saved = tf.train.Checkpoint(v=v).write(str(tmp_path / "c"))
    v.clear()

    de.train.Checkpoint(v=v).read(saved).assert_consumed()

    assert v.kv_creator is creator
    assert v.lookup([1]).numpy().tolist() == [[2.0]]


def test_a_creator_tells_its_config():
    config, saver = de.CuckooHashTableConfig(), de.FileSystemSaver()
    creator = de.CuckooHashTableCreator(config, saver)
    assert creator.get_config() == {"config": config, "saver": saver}
    assert isinstance(creator, de.KVCreator)


def test_a_saver_of_another_kind_is_refused():
    with pytest.raises(RuntimeError, match="FileSystemSaver"):
        de.CuckooHashTableCreator(saver="saver")


def test_a_creator_of_another_store_is_refused():
    class Mine(de.KVCreator):
        def create(self, *args, **kwargs):
            return None

    with pytest.raises(errors.UnsupportedError, match="Mine is not in this"):
        de.Variable(kv_creator=Mine())


@pytest.mark.parametrize(
    "name",
    [
        "HkvHashTable",
        "HkvHashTableConfig",
        "HkvHashTableCreator",
        "RedisTable",
        "RedisTableConfig",
        "RedisTableCreator",
    ],
)
def test_other_stores_say_what_to_do(name):
    with pytest.raises(errors.UnsupportedError, match=f"{name} is not.*Leave"):
        getattr(de, name)(anything=1)


@pytest.mark.parametrize(
    "arguments",
    [{"proc_size": 2}, {"proc_rank": 1}, {"save_path": "/tmp/rows"}],
)
def test_a_saver_to_a_place_of_its_own_says_what_to_do(arguments):
    with pytest.raises(errors.UnsupportedError, match="save_to_file_system"):
        de.FileSystemSaver(**arguments)


def test_savers_over_horovod_say_what_to_do():
    with pytest.raises(errors.UnsupportedError, match="train.Checkpoint"):
        de.train.DEHvdSaver()


def table(**options):
    return de.CuckooHashTable(tf.int64, tf.float32, [-1.0, -2.0], **options)


def test_a_bare_table_keeps_rows():
    t = table()
    t.insert([1, 2, 3], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    t.accum([1, 4], [[0.5, 0.5], [4.0, 4.0]], [True, False])
    t.remove([3])

    values, exists = t.lookup([1, 3, 4], return_exists=True)

    assert values.numpy().tolist() == [[1.5, 1.5], [-1, -2], [4, 4]]
    assert exists.numpy().tolist() == [True, False, True]
    assert int(t.size()) == 3
    keys, rows = t.export()
    assert sorted(keys.numpy()) == [1, 2, 4] and rows.shape == (3, 2)
    t.clear()
    assert int(t.size()) == 0


@pytest.mark.parametrize(
    ("defaults", "expected"),
    [
        ([7.0, 8.0], [[7, 8], [1, 1], [7, 8]]),
        ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[1, 2], [1, 1], [5, 6]]),
    ],
)
def test_a_lookup_brings_its_own_defaults(defaults, expected):
    t = table()
    t.insert([1], [[1.0, 1.0]])
    assert t.lookup([0, 1, 2], defaults).numpy().tolist() == expected


def test_defaults_of_a_lookup_must_be_rows_of_its_width():
    t = de.CuckooHashTable(tf.int64, tf.float32, 0.0)
    with pytest.raises(
        ValueError, match=r"row of width 1, .* got shape \(3,\)"
    ):
        t.lookup([0], [1.0, 2.0, 3.0])
    assert t.lookup([0], 4.0).numpy().tolist() == [[4]]


def test_a_bare_table_is_one_of_a_graph_with_a_default_of_the_graph():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        default = tf.constant([-1.0, -2.0])
        t = de.CuckooHashTable(tf.int64, tf.float32, default)
        session.run(t.insert([1], [[1.0, 1.0]]))
        assert session.run(t.lookup([1, 2])).tolist() == [[1, 1], [-1, -2]]


def test_a_bare_table_saves_and_loads_files(tmp_path):
    t = de.CuckooHashTableCreator().create(
        tf.int64, tf.float32, [0.0, 0.0], name="a/b", device="/CPU:0"
    )
    t.insert([1, 2], [[1.0, 1.0], [2.0, 2.0]])
    t.save_to_file_system(tmp_path)
    t.save_to_file_system(tmp_path, file_name="a_b_mht_1of2_rank0_size1")
    t.clear()

    t.load_from_file_system(tmp_path)
    assert int(t.size()) == 2
    t.clear()
    t.load_from_file_system(tmp_path, load_entire_dir=True)

    assert t.lookup([2]).numpy().tolist() == [[2, 2]]
    assert (tmp_path / "a_b-keys").exists()


def test_a_bare_table_loads_all_of_its_files_in_a_folder(tmp_path):
    t = de.CuckooHashTable(tf.int64, tf.float32, [0.0], name="t")
    stems = ["t", "t_mht_1of2_rank0_size1", "tt", "u", "t_mht_u"]
    for i, stem in enumerate(stems):
        t.insert([i], [[1.0]])
        t.save_to_file_system(tmp_path, file_name=stem)
        t.clear()
    t.load_from_file_system(tmp_path, load_entire_dir=True)
    assert sorted(t.export()[0].numpy()) == [0, 1]
    t.clear()
    t.load_from_file_system(tmp_path, file_name="u", load_entire_dir=True)
    assert sorted(t.export()[0].numpy()) == [3]
    with pytest.raises(tf.errors.NotFoundError, match="no file of 'v'"):
        t.load_from_file_system(tmp_path, file_name="v", load_entire_dir=True)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_bare_table_is_in_checkpoints_or_not(tmp_path, checkpoint):
    t = table(checkpoint=checkpoint)
    t.insert([1], [[1.0, 1.0]])
    saved = tf.train.Checkpoint(t=t).write(str(tmp_path / "c"))
    t.clear()

    tf.train.Checkpoint(t=t).read(saved)

    assert int(t.size()) == int(checkpoint)


def test_a_bare_table_has_no_saver_of_tfras():
    with pytest.raises(errors.UnsupportedError, match="shard_saveable"):
        table(shard_saveable_object_fn=print)
