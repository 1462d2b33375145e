"""Raw files that are damaged, missing or of something else."""

from __future__ import annotations

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
from tfembed import errors, policies


@pytest.mark.parametrize("file", [KEYS, VALUES])
@pytest.mark.parametrize("bytes_", [1, 8, 31])
def test_a_file_that_was_cut_short_is_refused(tmp_path, file, bytes_):
    write_pair(tmp_path, range(5), rows(range(5)))
    content = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(content[:bytes_])
    v = filled(num_keys=1)

    with pytest.raises(tf.errors.DataLossError, match=f"{tmp_path}/{file}"):
        v.load_from_file_system(tmp_path)

    assert contents(v) == {0: [0.0, 0.5]}


def test_nothing_is_loaded_where_a_later_pair_is_bad(tmp_path):
    write_pair(tmp_path, [0], rows([0]), "fs_mht_1of2_rank0_size1")
    write_pair(tmp_path, [1], [[1.0]], "fs_mht_2of2_rank0_size1")
    v = variable(2)

    with pytest.raises(tf.errors.DataLossError, match="has 1 values; the 1"):
        v.load_from_file_system(tmp_path)

    assert contents(v) == {}


def test_a_flipped_byte_is_found(tmp_path):
    filled().save_to_file_system(tmp_path)
    content = bytearray((tmp_path / VALUES).read_bytes())
    content[9] ^= 1
    (tmp_path / VALUES).write_bytes(content)
    v = variable()

    with pytest.raises(tf.errors.DataLossError, match="not what was saved"):
        v.load_from_file_system(tmp_path)

    assert contents(v) == {}


def test_files_of_another_program_over_ours_need_our_manifest_gone(tmp_path):
    filled().save_to_file_system(tmp_path)
    write_pair(tmp_path, [7], rows([7]))
    v = variable()
    with pytest.raises(tf.errors.DataLossError, match="another program has"):
        v.load_from_file_system(tmp_path)

    (tmp_path / ".tfembed.fs_mht_of1_rank0_size1").unlink()
    v.load_from_file_system(tmp_path)

    assert contents(v) == {7: [7.0, 7.5]}


def test_two_saves_in_one_folder_are_not_guessed_about(tmp_path):
    filled(2).save_to_file_system(tmp_path)
    filled(3).save_to_file_system(tmp_path)
    v = variable()

    with pytest.raises(errors.CheckpointError, match="several saves: 2 shards"):
        v.load_from_file_system_with_restore_function(tmp_path)


def test_a_save_with_a_file_missing_is_refused(tmp_path):
    filled(3).save_to_file_system(tmp_path)
    for kind in ("keys", "values"):
        (tmp_path / f"fs_mht_2of3_rank0_size1-{kind}").unlink()

    with pytest.raises(tf.errors.NotFoundError, match="fs_mht_2of3"):
        variable().load_from_file_system_with_restore_function(tmp_path)


def test_a_folder_without_files_of_the_variable_is_refused(tmp_path):
    filled(name="other").save_to_file_system(tmp_path)
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(tf.errors.NotFoundError):
            variable().load_from_file_system_with_restore_function(folder)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"proc_size": 0}, "proc_size"),
        ({"proc_size": 2, "proc_rank": 2}, "proc_rank"),
        ({"buffer_size": 0}, "buffer_size"),
        ({"dirpath": ""}, "`dirpath` must be"),
        ({"file_name_list": ["a", "b"]}, "each of the 1 shards"),
    ],
)
def test_arguments_that_are_not_allowed_are_refused(tmp_path, arguments, text):
    with pytest.raises(errors.ArgumentError, match=text):
        filled().save_to_file_system(**{"dirpath": tmp_path, **arguments})


@pytest.mark.parametrize("names", [["a", "a"], ["", "a"], ["a/b", "a"]])
def test_file_names_that_cannot_be_are_refused(tmp_path, names):
    with pytest.raises(tf.errors.InvalidArgumentError):
        filled(2).save_to_file_system(tmp_path, file_name_list=names)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(tf.errors.OpError, match=f"{tmp_path}/file"):
        filled().save_to_file_system(tmp_path / "file" / "folder")


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_more_rows_than_a_bounded_variable_holds_load_into_it(
    tmp_path, shards, in_function
):
    filled(num_keys=500).save_to_file_system(tmp_path)
    v = variable(shards, max_size=20, eviction=policies.LeastRecent())

    def load():
        v.load_from_file_system_with_restore_function(tmp_path)

    (tf.function(load) if in_function else load)()

    found = contents(v)
    assert 20 - shards < len(found) <= 20
    assert found == {k: rows([k])[0] for k in found}
    cuckoo = de.CuckooHashTable(tf.int64, tf.float32, [0.0, 0.0], name="fs")
    cuckoo.load_from_file_system(tmp_path, load_entire_dir=True)
    assert int(cuckoo.size()) == 500


@pytest.mark.parametrize("in_function", [False, True])
def test_a_partitioner_that_fails_late_changes_nothing(tmp_path, in_function):
    filled(num_keys=9).save_to_file_system(tmp_path)
    v = variable(2, partitioner=lambda keys, n: tf.where(keys == 8, n, 0))
    v.upsert([100], rows([100]))

    def load():
        v.load_from_file_system_with_restore_function(tmp_path, buffer_size=2)

    with pytest.raises(tf.errors.InvalidArgumentError, match="partitioner"):
        (tf.function(load) if in_function else load)()

    assert contents(v) == {100: rows([100])[0]}
