"""Raw files of rows: what several processes and shards write and read."""

from __future__ import annotations

import pytest
import tensorflow as tf

import fresh_process
import tfembed.dynamic_embedding as de


def variable(shards=2, dim=2):
    return de.Variable(dim=dim, devices=["/CPU:0"] * shards, name="scope/fs")


def saved(folder):
    v = variable()
    v.upsert(range(5), [[k, -k] for k in range(5)])
    v.save_to_file_system(folder)
    return v


def test_row_81_each_shard_is_a_pair_of_bare_arrays(tmp_path):
    saved(tmp_path)

    sizes = {f.name: f.stat().st_size for f in tmp_path.glob("scope*")}
    assert sizes == {
        "scope_fs_mht_1of2_rank0_size1-keys": 8 * 3,
        "scope_fs_mht_1of2_rank0_size1-values": 4 * 2 * 3,
        "scope_fs_mht_2of2_rank0_size1-keys": 8 * 2,
        "scope_fs_mht_2of2_rank0_size1-values": 4 * 2 * 2,
    }


def test_row_82_a_load_adds_to_what_is_there(tmp_path):
    v = saved(tmp_path)
    v.upsert([1, 99], [[7.0, 7.0], [9.0, 9.0]])

    v.load_from_file_system(tmp_path)

    assert int(v.size()) == 6
    assert v.lookup([1, 99]).numpy().tolist() == [[1, -1], [9, 9]]


def test_row_83_two_shards_restore_into_three(tmp_path):
    saved(tmp_path)
    v = variable(3)

    v.load_from_file_system_with_restore_function(tmp_path)

    assert [int(v.size(i)) for i in range(3)] == [2, 2, 1]
    assert v.lookup(range(5)).numpy().tolist() == [[k, -k] for k in range(5)]


def test_row_84_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(tf.errors.NotFoundError, match="scope_fs_mht_1of2"):
        variable().load_from_file_system(tmp_path)
    saved(tmp_path)
    (tmp_path / "scope_fs_mht_2of2_rank0_size1-values").unlink()
    v = variable()
    with pytest.raises(tf.errors.NotFoundError, match="2of2_rank0_size1-val"):
        v.load_from_file_system(tmp_path)
    assert int(v.size()) == 0


@pytest.mark.parametrize("dim", [1, 3, 4])
@pytest.mark.parametrize("manifest", [True, False])
def test_row_84_another_width_is_an_error(tmp_path, dim, manifest):
    saved(tmp_path)
    if not manifest:
        (tmp_path / ".tfembed.scope_fs_mht_of2_rank0_size1").unlink()
    v = variable(dim=dim)
    with pytest.raises(tf.errors.OpError, match="of width"):
        v.load_from_file_system(tmp_path)
    assert int(v.size()) == 0


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (3, 1)])
def test_row_85_string_keys_come_back_as_they_were(tmp_path, before, after):
    keys = ["", "a", "größer", "x" * 1000, "null\0byte", "line\nbreak"]
    rows = [[k, -k] for k in range(len(keys))]

    def strings(shards):
        return de.Variable(
            key_dtype=tf.string,
            dim=2,
            devices=["/CPU:0"] * shards,
            name="strings",
        )

    v = strings(before)
    v.upsert(tf.constant(keys), rows)
    v.save_to_file_system(tmp_path, buffer_size=4)
    v.upsert(tf.constant(["later"]), [[7.0, 7.0]])
    v.save_to_file_system(tmp_path / "later")
    v.save_to_file_system(tmp_path / "later", append_to_file=True)

    w = strings(after)
    w.load_from_file_system_with_restore_function(tmp_path)
    values, exists = w.lookup(tf.constant(keys), return_exists=True)
    assert exists.numpy().all() and values.numpy().tolist() == rows
    assert int(w.size()) == len(keys)
    w.load_from_file_system_with_restore_function(tmp_path / "later")
    assert w.lookup(tf.constant(["later"])).numpy().tolist() == [[7, 7]]
    with pytest.raises(tf.errors.OpError, match="strings"):
        variable(before).load_from_file_system(
            tmp_path,
            file_name_list=[
                f.name[:-5] for f in tmp_path.glob("strings*-keys")
            ],
        )


# Forks before TensorFlow's first op, so that all kills take one start-up.
KILLED = """
import os, random, signal, sys, time
import numpy as np
import tensorflow as tf
import tfembed.dynamic_embedding as de

folder, kills = sys.argv[1], int(sys.argv[2])
keys = np.arange(50_000)


def variable():
    return de.Variable(dim=4, devices=["/CPU:0"] * 2, name="v")


def save_for_ever(pipe, step):
    v = variable()
    while True:
        v.upsert(keys, np.full([len(keys), 4], step, np.float32))
        os.write(pipe, b"%d\\n" % step)
        v.save_to_file_system(folder)
        step += 1


def check(pipe, started):
    v = variable()
    v.load_from_file_system(folder)
    values, exists = v.lookup(keys, return_exists=True)
    step = int(values[0, 0])
    assert exists.numpy().all() and (values.numpy() == step).all()
    assert step in (started - 1, started), (step, started)
    os.write(pipe, b"%d\\n" % step)


def in_child(function, *arguments):
    child = os.fork()
    if child:
        return child
    try:
        function(*arguments)
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)


rng = random.Random(0)
saved = -1
for i in range(kills):
    reader, writer = os.pipe()
    child = in_child(save_for_ever, writer, saved + 1)
    os.close(writer)
    steps = os.fdopen(reader)
    seen = [int(steps.readline()) for _ in range(2)]  # The second save begins.
    time.sleep(rng.uniform(0, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    seen += map(int, steps)
    reader, writer = os.pipe()
    assert os.waitpid(in_child(check, writer, seen[-1]), 0)[1] == 0, i
    os.close(writer)
    saved = int(os.fdopen(reader).readline())
print("whole after", kills, "kills at", saved)
"""


def kill(folder, kills):
    output = fresh_process.output_of(KILLED, folder, kills)
    assert f"whole after {kills} kills" in output


def test_row_86_a_kill_during_a_save_leaves_the_one_before_it(tmp_path):
    kill(tmp_path, 2)


@pytest.mark.slow
def test_row_86_fifteen_kills_leave_one_whole_save_each_time(tmp_path):
    kill(tmp_path, 15)


FILES = [
    f"scope_fs_mht_{i}of2_rank0_size1-{kind}"
    for i in (1, 2)
    for kind in ("keys", "values")
]


def halfway(folder, published):
    """The folder as a save leaves it that was killed after some renames."""
    manifest = folder / ".tfembed.scope_fs_mht_of2_rank0_size1"
    save_id = manifest.read_text().split("\nsave ")[1][:16]
    for name in FILES[published:]:
        (folder / name).rename(folder / f".tfembed_new.{save_id}.{name}")
        (folder / name).write_bytes(b"what the save before has left")


@pytest.mark.parametrize("published", range(5))
def test_row_86_a_kill_between_the_renames_is_healed(tmp_path, published):
    v = saved(tmp_path)
    halfway(tmp_path, published)

    w = variable()
    w.load_from_file_system(tmp_path)
    assert w.lookup(range(5)).numpy().tolist() == [[k, -k] for k in range(5)]

    v.upsert([0], [[8.0, 8.0]])
    v.save_to_file_system(tmp_path)
    w.load_from_file_system(tmp_path)
    assert w.lookup([0]).numpy().tolist() == [[8, 8]]
    assert not list(tmp_path.glob(".tfembed_new*"))


@pytest.mark.parametrize("published", range(5))
def test_row_86_an_append_after_a_kill_goes_on_from_whole_files(
    tmp_path, published
):
    v = saved(tmp_path)
    halfway(tmp_path, published)
    v.clear()
    v.upsert([7], [[7.0, -7.0]])

    v.save_to_file_system(tmp_path, append_to_file=True)

    w = variable()
    w.load_from_file_system(tmp_path)
    keys = [0, 1, 2, 3, 4, 7]
    assert w.lookup(keys).numpy().tolist() == [[k, -k] for k in keys]


def test_row_86_leftovers_of_a_save_that_was_never_finished_are_removed(
    tmp_path,
):
    v = saved(tmp_path)
    leftover = tmp_path / f".tfembed_new.{'0' * 16}.{FILES[0]}"
    leftover.write_bytes(b"half")
    other = tmp_path / f".tfembed_new.{'0' * 16}.other-keys"
    other.write_bytes(b"of somebody else")

    v.load_from_file_system(tmp_path)
    v.save_to_file_system(tmp_path)

    assert not leftover.exists()
    assert other.exists()


def test_row_86_an_append_to_damaged_files_changes_nothing(tmp_path):
    v = saved(tmp_path)
    (tmp_path / FILES[3]).write_bytes(b"cut")
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}

    with pytest.raises(tf.errors.DataLossError, match=FILES[3]):
        v.save_to_file_system(tmp_path, append_to_file=True)

    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before
