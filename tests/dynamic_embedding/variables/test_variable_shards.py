"""`Variable.tables`: shards with the methods of TFRA's tables."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from dynamic_embedding.shadows import contents, keys
from tfembed import errors

v1 = tf.compat.v1


def filled(shards=3, name="scope/rows", **options):
    v = de.Variable(
        dim=1,
        devices=["/CPU:0"] * shards,
        name=name,
        initializer=-1.0,
        **options,
    )
    v.upsert(range(10), np.arange(10.0)[:, None])
    return v


def test_a_shard_tells_what_it_is():
    v = filled()
    assert [shard.name for shard in v.tables] == [
        f"scope_rows_mht_{i}of3" for i in (1, 2, 3)
    ]
    shard = v.tables[1]
    assert (shard.key_dtype, shard.value_dtype) == (tf.int64, tf.float32)
    assert "CPU" in shard.resource_handle.device
    assert "scope_rows_mht_2of3" in repr(shard)


def test_a_shard_hands_out_its_own_rows():
    v = filled()
    for i, shard in enumerate(v.tables):
        found, rows = (x.numpy() for x in shard.export())
        assert sorted(found) == list(range(i, 10, 3))
        assert rows[:, 0].tolist() == found.tolist()
        assert int(shard.size()) == len(found)


def test_a_shard_knows_no_keys_of_others():
    rows, exists = filled().tables[0].lookup(keys(3, 4), return_exists=True)
    assert rows.numpy().tolist() == [[3], [-1]]
    assert exists.numpy().tolist() == [True, False]
    with pytest.raises(ValueError, match="int64"):
        filled().tables[0].lookup(tf.constant([1], tf.uint64))


def test_keys_that_a_shard_does_not_have_read_the_defaults_of_a_lookup():
    shard = filled().tables[0]
    rows, exists = shard.lookup(keys(3, 4), [[5.0]], True)
    assert rows.numpy().tolist() == [[3], [5]]
    assert exists.numpy().tolist() == [True, False]
    assert shard.lookup(keys(3, 4), 5.0).numpy().tolist() == [[3], [5]]
    for defaults in ([[5.0, 6.0]], [[5.0], [6.0]], [[[5.0]]]):
        with pytest.raises(errors.ArgumentError, match="width 1, or one for"):
            shard.lookup(keys(3), defaults)


def test_defaults_whose_number_only_a_run_knows_are_refused_then():
    shard = filled().tables[0]
    found = tf.function(
        lambda keys: shard.lookup(keys, [[5.0], [6.0], [7.0]]),
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    assert found(keys(3, 4, 7)).numpy().tolist() == [[3], [6], [7]]
    for fewer in (keys(4), keys(3, 4)):
        with pytest.raises(tf.errors.InvalidArgumentError):
            found(fewer)


def test_a_shard_adds_to_what_was_there_and_inserts_what_was_not():
    v = filled()
    shard = v.tables[0]
    shard.accum(
        keys(0, 3, 12, 15),
        [[10.0], [20.0], [30.0], [40.0]],
        [True, False, False, True],
    )
    found = v.lookup(keys(0, 3, 12, 15)).numpy()
    assert found[:, 0].tolist() == [10, 3, 30, -1]
    with pytest.raises(TypeError, match="bool"):
        de.Variable(tf.string, tf.bool, name="flags").tables[0].accum(
            [b"a"], [[True]], [True]
        )


def test_what_a_shard_inserts_is_found_in_the_variable():
    v = filled()
    v.tables[0].insert(keys(11, 12), [[11.0], [12.0]])
    assert v.lookup(keys(11, 12)).numpy().tolist() == [[11], [12]]
    assert [int(shard.size()) for shard in v.tables] == [5, 3, 4]


def test_a_shard_removes_its_own_keys_with_their_status():
    v = filled(restrict_policy=de.FrequencyRestrictPolicy)
    v.restrict_policy.apply_update(tf.range(10, dtype=tf.int64))
    v.tables[0].remove(tf.constant([[0, 1], [3, 99]], tf.int64))
    assert sorted(contents(v)) == [1, 2, 4, 5, 6, 7, 8, 9]
    assert sorted(contents(v.restrict_policy.freq_var)) == sorted(contents(v))
    with pytest.raises(TypeError, match="int64"):
        v.tables[0].remove(tf.constant([1], tf.uint64))

    v.tables[1].clear()
    assert sorted(contents(v)) == [2, 5, 6, 8, 9]


def test_a_shard_is_written_to_files_and_read(tmp_path):
    v = filled(2)
    for i, shard in enumerate(v.tables):
        shard.save_to_file_system(str(tmp_path / str(i)), buffer_size=4096)
    assert (tmp_path / "1" / "scope_rows_mht_2of2-keys").exists()

    other = de.Variable(dim=1, devices=["/CPU:0"] * 2, name="scope/rows")
    for i, shard in enumerate(other.tables):
        shard.load_from_file_system(str(tmp_path / str(i)))
    assert contents(other) == contents(v)


def test_a_shard_reads_all_files_of_its_variable_in_a_folder(tmp_path):
    v = filled(2)
    for shard in v.tables:
        shard.save_to_file_system(tmp_path)
    other = de.Variable(dim=1, name="scope/rows")
    other.tables[0].load_from_file_system(tmp_path, load_entire_dir=True)
    assert contents(other) == contents(v)


def test_a_policy_that_was_written_for_tfra_restricts_shard_by_shard():
    class KeepLargest(de.RestrictPolicy):
        def __init__(self, var):
            super().__init__(var)
            self.threshold = 1

        @property
        def status(self):
            return self.var

        def apply_update(self, ids):
            pass

        def apply_restriction(self, num_reserved, **kwargs):
            share = num_reserved // self.var.shard_num
            for i in range(self.var.shard_num):
                found, rows = self.var.tables[i].export()
                excess = tf.maximum(tf.size(found) - share, 0)
                _, places = tf.math.top_k(-rows[:, 0], excess)
                self.var.tables[i].remove(tf.gather(found, places))

    v = filled(2, restrict_policy=KeepLargest)
    v.restrict(4)
    assert sorted(contents(v)) == [6, 7, 8, 9]


def test_policies_have_tfras_names_of_their_status():
    for policy, name in (
        (de.FrequencyRestrictPolicy, "freq_var"),
        (de.TimestampRestrictPolicy, "tstp_var"),
    ):
        v = filled(restrict_policy=policy)
        assert getattr(v.restrict_policy, name) is v.restrict_policy.status
        assert v.restrict_policy.var is v


def test_a_saver_takes_the_tables_of_a_variable_with_one_shard(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        v = de.Variable(dim=1, name="t1", initializer=-1.0)
        saver = v1.train.Saver(v.tables)
        session.run(v.upsert([0, 1], [[0.0], [1.0]]))
        path = saver.save(session, str(tmp_path / "ckpt"))
        session.run(v.upsert([5], [[5.0]]))
        v1.train.Saver([v.tables[0]]).restore(session, path)
        assert session.run(v.size()) == 2
        assert session.run(v.tables[0].size()) == 2

        several = de.Variable(devices=["/CPU:0"] * 2, name="t2")
        with pytest.raises(errors.UnsupportedError, match="not by shard"):
            v1.train.Saver(several.tables)


def words(shards=2):
    v = de.Variable(
        tf.int64,
        tf.string,
        dim=2,
        devices=["/CPU:0"] * shards,
        name="words",
        initializer="-",
    )
    v.upsert([1, 2, 3], [["a", "b"], ["c", "d"], ["e", "f"]])
    return v


def test_a_shard_of_strings_has_its_own_keys_alone():
    shard = words().tables[1]
    assert shard.name == "words_mht_2of2"
    assert (shard.key_dtype, shard.value_dtype) == (tf.int64, tf.string)
    assert (shard.dim, int(shard.size())) == (2, 2)
    found, rows = (x.numpy().tolist() for x in shard.export())
    assert sorted(zip(found, rows, strict=True)) == [
        (1, [b"a", b"b"]),
        (3, [b"e", b"f"]),
    ]


@pytest.mark.parametrize("in_function", [False, True])
def test_a_shard_of_strings_is_looked_up(in_function):
    shard = words().tables[1]

    def look_up(*arguments):
        return shard.lookup(*arguments, return_exists=True)

    look_up = tf.function(look_up) if in_function else look_up
    rows, exists = look_up(keys(3, 2))
    assert rows.numpy().tolist() == [[b"e", b"f"], [b"-", b"-"]]
    assert exists.numpy().tolist() == [True, False]
    assert shard.lookup([[3]]).numpy().tolist() == [[[b"e", b"f"]]]
    rows, _ = look_up(keys(3, 2), [["x", "y"]])
    assert rows.numpy().tolist() == [[b"e", b"f"], [b"x", b"y"]]
    with pytest.raises(ValueError, match="int64"):
        shard.lookup(tf.constant([1], tf.uint64))


def test_a_shard_of_strings_writes_and_removes():
    v = words()
    even, odd = v.tables
    even.insert([4, 5], [["g", "h"], ["i", "j"]])
    assert v.lookup([4, 5]).numpy().tolist() == [[b"g", b"h"], [b"i", b"j"]]
    odd.remove([[2], [3]])
    assert sorted(v.export()[0].numpy()) == [1, 2, 4, 5]
    odd.clear()
    assert sorted(v.export()[0].numpy()) == [2, 4]


def test_a_shard_of_strings_has_no_more_than_its_variable():
    shard = words().tables[0]
    with pytest.raises(errors.UnsupportedError, match="raw files"):
        shard.save_to_file_system("/nowhere")
    with pytest.raises(errors.UnsupportedError, match="raw files"):
        shard.load_from_file_system("/nowhere")
    with pytest.raises(errors.DtypeError, match="cannot be accumulated"):
        shard.accum([1], [["a", "b"]], [True])


def test_a_saver_takes_the_tables_of_strings_of_one_shard(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        v = de.Variable(tf.int64, tf.string, name="s")
        saver = v1.train.Saver(v.tables)
        session.run(v.upsert([1], [["a"]]))
        path = saver.save(session, str(tmp_path / "ckpt"))
        session.run(v.tables[0].clear())
        saver.restore(session, path)
        assert session.run(v.tables[0].lookup([1])).tolist() == [[b"a"]]


def test_a_bare_table_tells_its_dtypes():
    table = de.CuckooHashTable(tf.int64, tf.int32, [0, 0], name="bare")
    assert (table.key_dtype, table.value_dtype) == (tf.int64, tf.int32)
    assert "CPU" in table.resource_handle.device
