"""Raw files that are damaged, missing or of something else."""

from __future__ import annotations

import os
import stat

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
@pytest.mark.parametrize("buffer_size", [5, 1000])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_best_of_more_rows_than_a_bounded_variable_holds_stay(
    tmp_path, shards, buffer_size, in_function
):
    """Kind: see tests/checkpoint/test_smaller_bound.py."""
    filled(num_keys=100).save_to_file_system(tmp_path)
    v = variable(shards, max_size=20, eviction=policies.SmallestNorm())
    v.upsert([1000, 1001], [[1.0, 1.0], [2000.0, 1.0]])

    def load():
        v.load_from_file_system_with_restore_function(
            tmp_path, buffer_size=buffer_size
        )

    (tf.function(load) if in_function else load)()

    found = contents(v)
    expected = {1001}
    for shard, owner in enumerate(v.table.shards):
        own = [k for k in [*range(100), 1001] if k % shards == shard]
        expected |= set(own[-owner.options.max_size :])
    assert set(found) == expected
    assert found == {
        k: rows([k])[0] if k < 100 else [2000.0, 1.0] for k in found
    }


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    "policy", [policies.LeastRecent(), policies.LeastFrequent()]
)
def test_rows_that_nothing_ranks_are_refused_by_number(
    tmp_path, policy, shards, in_function
):
    saved = filled(num_keys=500)
    saved.save_to_file_system(tmp_path)
    v = variable(shards, max_size=20, eviction=policy)
    v.upsert([1, 1000], [[7.0, 7.0], [8.0, 8.0]])

    def load():
        v.load_from_file_system_with_restore_function(tmp_path)

    with pytest.raises(
        tf.errors.InvalidArgumentError, match="more keys for a shard of table"
    ):
        (tf.function(load) if in_function else load)()

    assert contents(v) == {1: [7.0, 7.0], 1000: [8.0, 8.0]}


def test_repeated_keys_of_files_count_once(tmp_path):
    v = filled(num_keys=20, max_size=20, eviction=policies.LeastRecent())
    for append in (False, True, True):
        v.save_to_file_system(tmp_path, append_to_file=append)
    expected = contents(v)
    v.clear()

    v.load_from_file_system(tmp_path)

    assert contents(v) == expected


def test_files_of_any_size_load_into_a_variable_without_a_bound(tmp_path):
    filled(num_keys=500).save_to_file_system(tmp_path)
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


def test_a_save_replaces_the_file_at_the_end_of_a_link(tmp_path):
    (tmp_path / "other").mkdir()
    for name in (KEYS, VALUES):
        (tmp_path / "other" / name).touch()
        (tmp_path / name).symlink_to(tmp_path / "other" / name)
    saved = filled()

    saved.save_to_file_system(tmp_path)

    assert (tmp_path / KEYS).is_symlink() and (tmp_path / VALUES).is_symlink()
    assert (tmp_path / "other" / VALUES).stat().st_size
    v = variable()
    v.load_from_file_system(tmp_path)
    assert contents(v) == contents(saved)


def _a_device(path):
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


@pytest.mark.parametrize(
    "make, text",
    [
        (os.mkfifo, "is a FIFO"),
        (_a_device, "is a device"),
        (os.mkdir, "is a folder"),
        (lambda path: path.symlink_to("nowhere"), "a link that ends nowhere"),
        (lambda path: path.symlink_to("/proc/version"), "another file system"),
    ],
)
@pytest.mark.parametrize("file", [KEYS, VALUES])
def test_a_save_replaces_files_alone(tmp_path, file, make, text):
    make(tmp_path / file)
    before = (tmp_path / file).lstat().st_ino

    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        filled().save_to_file_system(tmp_path)

    assert (tmp_path / file).lstat().st_ino == before
    assert [path.name for path in tmp_path.iterdir()] == [file]
