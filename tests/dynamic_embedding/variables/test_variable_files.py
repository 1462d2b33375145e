"""Raw files of keys and rows, as TFRA's FileSystemSaver writes and reads them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from dynamic_embedding.file_variables import (
    KEYS,
    VALUES,
    contents,
    filled,
    rows,
    variable,
    write_pair,
)
from tfembed import optimizers, policies


def test_files_of_another_program_load(tmp_path):
    (tmp_path / KEYS).write_bytes(
        b"\x07\0\0\0\0\0\0\0\xfe\xff\xff\xff\xff\xff\xff\xff"
    )
    (tmp_path / VALUES).write_bytes(
        b"\0\0\x80\x3f\0\0\0\xc0\0\0\0\x3f\0\0\x40\x40"
    )
    v = variable()

    v.load_from_file_system(tmp_path)

    assert contents(v) == {7: [1.0, -2.0], -2: [0.5, 3.0]}


def test_what_is_written_is_the_bare_arrays(tmp_path):
    v = filled()

    v.save_to_file_system(tmp_path)

    keys = np.frombuffer((tmp_path / KEYS).read_bytes(), "<i8")
    values = np.frombuffer((tmp_path / VALUES).read_bytes(), "<f4")
    assert sorted(keys) == list(range(5))
    assert values.reshape(5, 2).tolist() == rows(keys)


# On both sides of 0 and of 2^31, where the rules of shards differ.
FAR_KEYS = [-(2**63), -5, -1, 0, 2, 7, 2**31, 2**40 + 1, 2**63 - 1]


def keys_of_pairs(folder, shards, dtype="<i8"):
    return [
        np.fromfile(
            folder / f"fs_mht_{i + 1}of{shards}_rank0_size1-keys", dtype
        ).tolist()
        for i in range(shards)
    ]


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("shards", [1, 2, 3, 4, 5])
def test_keys_are_in_the_pairs_in_which_tfra_looks_for_them(
    tmp_path, shards, append
):
    """Kind: rows that another program does not find in files that both have.

    Looked for in: int64 keys (here), int32 and string keys and partitioners
    (below), the files of a single shard, which has one pair.
    """
    v = variable(shards)
    v.upsert(FAR_KEYS[:4], rows(FAR_KEYS[:4]))
    v.save_to_file_system(tmp_path)
    v.upsert(FAR_KEYS, rows(FAR_KEYS))

    v.save_to_file_system(tmp_path, buffer_size=2, append_to_file=append)

    found = keys_of_pairs(tmp_path, shards)
    for i, keys in enumerate(found):
        assert all((key & 0x7FFFFFFF) % shards == i for key in keys)
    assert sorted(key for keys in found for key in keys) == sorted(
        FAR_KEYS + (FAR_KEYS[:4] if append else [])
    )
    loaded = variable(3)
    loaded.load_from_file_system_with_restore_function(tmp_path)
    assert contents(loaded) == contents(v)


@pytest.mark.parametrize("half", [tf.float16, tf.int8])
def test_slots_and_notes_stay_out_of_pairs_that_are_dealt(tmp_path, half):
    v = variable(3, value_dtype=half, eviction=policies.LeastRecent())
    v.upsert(FAR_KEYS, tf.cast(tf.fill([9, 2], 3), half))

    v.save_to_file_system(tmp_path)

    assert sum(map(len, keys_of_pairs(tmp_path, 3))) == 9
    loaded = variable(2, value_dtype=half)
    loaded.load_from_file_system_with_restore_function(tmp_path)
    assert contents(loaded) == {key: [3, 3] for key in FAR_KEYS}


def test_with_a_partitioner_a_pair_has_the_rows_of_a_shard(tmp_path):
    v = variable(3, partitioner=tf.math.floormod)
    v.upsert(FAR_KEYS, rows(FAR_KEYS))

    v.save_to_file_system(tmp_path)

    for i, keys in enumerate(keys_of_pairs(tmp_path, 3)):
        assert sorted(keys) == [key for key in FAR_KEYS if key % 3 == i]


def test_int32_keys_are_in_the_pairs_of_their_remainders(tmp_path):
    own = [-5, -1, 0, 2, 7]
    v = variable(3, key_dtype=tf.int32)
    v.upsert(tf.constant(own), rows(own))

    v.save_to_file_system(tmp_path)

    for i, keys in enumerate(keys_of_pairs(tmp_path, 3, "<i4")):
        assert sorted(keys) == [key for key in own if key % 3 == i]


def test_slots_are_not_in_the_files(tmp_path):
    v = filled()
    optimizer = de.DynamicEmbeddingOptimizer(optimizers.Adagrad(0.5))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(de.embedding_lookup(v, [1], name="x"))
    optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    v.save_to_file_system(tmp_path)

    w = variable()
    w.load_from_file_system(tmp_path)
    assert contents(w) == contents(v)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_an_empty_variable_makes_empty_files(tmp_path, shards):
    variable(shards).save_to_file_system(tmp_path)
    v = filled()

    v.load_from_file_system_with_restore_function(tmp_path)

    assert len(contents(v)) == 5
    assert not [f for f in tmp_path.glob("fs*") if f.stat().st_size]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2), (3, 3)])
def test_any_shard_count_restores_into_any_other(tmp_path, before, after):
    v = filled(before, 100)
    v.save_to_file_system(tmp_path)
    w = variable(after, partitioner=lambda keys, n: (keys * 7) % n)

    w.load_from_file_system_with_restore_function(tmp_path)

    assert contents(w) == contents(v)
    assert all((w.lookup(k)[0] == k) for k in range(100))


def test_a_row_goes_to_its_shard_whichever_file_it_is_in(tmp_path):
    write_pair(tmp_path, [1, 3], rows([1, 3]), "fs_mht_1of2_rank0_size1")
    write_pair(tmp_path, [0, 2], rows([0, 2]), "fs_mht_2of2_rank0_size1")
    v = variable(2)

    v.load_from_file_system(tmp_path)

    assert v.lookup([0, 1, 2, 3]).numpy().tolist() == rows(range(4))


def test_each_process_saves_and_restores_its_own_rows(tmp_path):
    for rank in range(2):
        v = variable()
        v.upsert([rank, rank + 2], rows([rank, rank + 2]))
        v.save_to_file_system(tmp_path, proc_size=2, proc_rank=rank)
    v = variable()

    v.load_from_file_system(tmp_path, proc_size=2, proc_rank=1)

    assert sorted(contents(v)) == [1, 3]


@pytest.mark.parametrize(("size", "rank"), [(1, 0), (3, 0), (3, 2)])
def test_another_number_of_processes_restores_by_the_partitioner(
    tmp_path, size, rank
):
    for saved in range(2):
        write_pair(
            tmp_path,
            range(saved, 10, 2),
            rows(range(saved, 10, 2)),
            f"fs_mht_1of1_rank{saved}_size2",
        )
    v = variable()

    v.load_from_file_system_with_restore_function(tmp_path, size, rank)

    assert sorted(contents(v)) == [k for k in range(10) if k % size == rank]


def test_as_many_processes_take_their_own_files_each(tmp_path):
    write_pair(tmp_path, [5], rows([5]), "fs_mht_1of1_rank0_size2")
    write_pair(tmp_path, [8], rows([8]), "fs_mht_1of1_rank1_size2")
    v = variable(2)

    de.load_de_variable_from_file_system(v, tmp_path, 2, 0, 100)

    assert sorted(contents(v)) == [5]


def test_an_entire_directory_loads(tmp_path):
    write_pair(tmp_path, [5], rows([5]), "fs_mht_1of1_rank0_size2")
    write_pair(tmp_path, [8], rows([8]), "fs_mht_3of4_rank0_size1")
    write_pair(tmp_path, [9], rows([9]), "fs2_mht_3of4_rank0_size1")
    v = variable()

    v.load_from_file_system(tmp_path, load_entire_dir=True)

    assert sorted(contents(v)) == [5, 8]


def test_files_have_the_names_that_are_given(tmp_path):
    v = filled(2)
    v.save_to_file_system(tmp_path, file_name_list=["a", "b"])
    names = sorted(f.name for f in tmp_path.glob("[ab]-*"))
    w = variable(3)

    w.load_from_file_system(tmp_path, file_name_list=["a", "b"])

    assert names == ["a-keys", "a-values", "b-keys", "b-values"]
    assert contents(w) == contents(v)


def test_the_environment_names_another_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TFRA_SAVED_KV", str(tmp_path / "env"))
    v = filled()
    v.save_to_file_system(tmp_path / "argument")
    v.clear()

    v.load_from_file_system(tmp_path / "argument")

    assert not (tmp_path / "argument").exists()
    assert (tmp_path / "env" / KEYS).exists()
    assert len(contents(v)) == 5


def test_the_environment_may_be_left_out_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TFRA_SAVED_KV", str(tmp_path / "env"))
    filled().save_to_file_system(tmp_path / "argument", dirpath_env="")
    assert (tmp_path / "argument" / KEYS).exists()


def test_rows_are_appended(tmp_path):
    v = filled()
    v.save_to_file_system(tmp_path, append_to_file=True)
    v.clear()
    v.upsert([8, 9], rows([8, 9]))
    v.save_to_file_system(tmp_path, append_to_file=True)

    v.load_from_file_system(tmp_path)

    assert sorted(contents(v)) == [0, 1, 2, 3, 4, 8, 9]
    assert (tmp_path / KEYS).stat().st_size == 7 * 8


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_buffers_of_any_size_give_the_same(tmp_path, size):
    v = filled(2, 100)
    v.save_to_file_system(tmp_path, buffer_size=size)
    w = variable(2)

    w.load_from_file_system(tmp_path, buffer_size=size)

    assert contents(w) == contents(v)


def test_a_function_saves_and_loads(tmp_path):
    v = filled(2)

    @tf.function
    def save_clear_load(folder):
        v.save_to_file_system(folder)
        v.clear()
        size = v.size()
        v.load_from_file_system(folder)
        return size, v.size()

    assert [int(n) for n in save_clear_load(tf.constant(str(tmp_path)))] == [
        0,
        5,
    ]


@pytest.mark.parametrize(
    ("key_dtype", "value_dtype"),
    [
        (tf.int64, tf.float16),
        (tf.int64, tf.bfloat16),
        (tf.int64, tf.int8),
        (tf.int64, tf.int64),
        (tf.int64, tf.float64),
        (tf.int32, tf.float32),
        (tf.int32, tf.float64),
    ],
)
def test_files_of_other_dtypes_hold_their_bytes(
    tmp_path, key_dtype, value_dtype
):
    options = {"key_dtype": key_dtype, "value_dtype": value_dtype, "dim": 3}
    v = variable(2, **options)
    keys = tf.constant([-1, 2, 3, 4], key_dtype)
    values = tf.cast(tf.reshape(tf.range(12), [4, 3]), value_dtype)
    v.upsert(keys, values)
    v.save_to_file_system(tmp_path)
    w = variable(3, **options)

    w.load_from_file_system_with_restore_function(tmp_path)

    assert (w.lookup(keys).numpy() == values.numpy()).all()
    sizes = {
        kind: sum(f.stat().st_size for f in tmp_path.glob(f"*-{kind}"))
        for kind in ("keys", "values")
    }
    assert sizes == {
        "keys": 4 * key_dtype.size,
        "values": 12 * value_dtype.size,
    }
    other = variable(2, dim=3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="was saved with"):
        other.load_from_file_system(tmp_path)
