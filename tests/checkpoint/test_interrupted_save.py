"""Saves that fail or are killed: the checkpoint before them stays whole."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess

import numpy as np
import pytest
import tensorflow as tf

import fresh_process
from saved_models import (
    assert_same_content,
    content,
    model_of,
    trained_model,
)


@contextlib.contextmanager
def file_size_limit(directory):
    """No file grows over 1 MB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


@contextlib.contextmanager
def full_file_system(directory):
    """Another file takes all that is left of a small file system."""
    filler = os.open(directory / "filler", os.O_CREAT | os.O_WRONLY)
    try:
        with contextlib.suppress(OSError):
            while os.write(filler, bytes(4096)):
                pass
        yield
    finally:
        os.close(filler)
        (directory / "filler").unlink()


@contextlib.contextmanager
def read_only_directory(directory):
    """Nobody may write there; root becomes nobody for the time."""
    directory.chmod(0o555)
    is_root = os.getuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        directory.chmod(0o755)


def assert_a_failed_save_does_no_harm(directory, obstacle):
    model = trained_model(1000)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model), str(directory), max_to_keep=3
    )
    manager.save()
    before = content(model.table)
    model.table.upsert(np.arange(10**5, 2 * 10**5), np.ones([10**5, 3]))

    with (
        obstacle(directory),
        pytest.raises(tf.errors.OpError, match=str(directory)),
    ):
        manager.save()

    assert int(model.table.size()) == 101_000
    restored = model_of()
    latest = tf.train.latest_checkpoint(str(directory))
    tf.train.Checkpoint(model=restored).restore(latest).assert_consumed()
    assert_same_content(content(restored.table), before)
    assert not list(directory.glob("*tempstate*"))
    tf.train.Checkpoint(model=restored).restore(manager.save())
    assert_same_content(content(restored.table), content(model.table))


def test_a_full_disk_leaves_the_checkpoint_before_it(tmp_path):
    assert_a_failed_save_does_no_harm(tmp_path, file_size_limit)


def test_a_full_file_system_leaves_the_checkpoint_before_it(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(tmp_path)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a small file system cannot be mounted here")
    try:
        assert_a_failed_save_does_no_harm(tmp_path, full_file_system)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_read_only_directory_leaves_the_checkpoint_before_it(tmp_path):
    assert_a_failed_save_does_no_harm(tmp_path, read_only_directory)


def test_a_path_below_a_file_is_refused_and_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    checkpoint = tf.train.Checkpoint(model=trained_model(10))

    with pytest.raises(tf.errors.OpError, match=f"{tmp_path}/file"):
        checkpoint.write(str(tmp_path / "file" / "ckpt"))


# Forks before TensorFlow's first op, so that twenty kills take one start-up.
KILLED = """
import os, random, signal, sys, time
import numpy as np
import tensorflow as tf
from saved_models import model_of

directory, kills = sys.argv[1], int(sys.argv[2])
keys = np.arange(100_000)


def open_model():
    model = model_of(2)
    checkpoint = tf.train.Checkpoint(model=model, step=tf.Variable(0, tf.int64))
    return model, checkpoint, tf.train.CheckpointManager(
        checkpoint, directory, max_to_keep=2
    )


def save_for_ever(pipe):
    model, checkpoint, manager = open_model()
    checkpoint.restore(manager.latest_checkpoint)
    while True:
        step = int(checkpoint.step.assign_add(1))
        model.table.upsert(keys, np.full([len(keys), 3], step, np.float32))
        os.write(pipe, b"s%d\\n" % step)
        manager.save()
        os.write(pipe, b"f%d\\n" % step)


def check(last_saved):
    model, checkpoint, manager = open_model()
    checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    step = int(checkpoint.step)
    values, exists = model.table.lookup(keys)
    assert exists.numpy().all() and (values.numpy() == step).all()
    assert step in (last_saved, last_saved + 1), (step, last_saved)
    print("restored", step, "after", last_saved, flush=True)


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
saved = 0
for i in range(kills):
    reader, writer = os.pipe()
    child = in_child(save_for_ever, writer)
    os.close(writer)
    messages = os.fdopen(reader)
    lines = []
    for line in messages:
        lines.append(line)
        if line == f"f{saved + 1}\\n" or (i and line[0] == "s"):
            break
    time.sleep(rng.uniform(0, 0.15))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    # When a step starts, the one before it is saved, even if the child that did
    # it was killed before it could say so.
    lines += messages
    saved = max([saved] + [int(m[1:]) - (m[0] == "s") for m in lines])
    status = os.waitpid(in_child(check, saved), 0)[1]
    assert status == 0, i
leftovers = [f for f in os.listdir(directory) if "tempstate" in f]
print("leftovers", len(leftovers))
"""


@pytest.mark.slow
def test_twenty_kills_during_saves_always_leave_a_whole_checkpoint(tmp_path):
    output = fresh_process.output_of(KILLED, tmp_path, 20)

    assert output.count("restored") == 20


def test_a_kill_during_a_save_leaves_a_whole_checkpoint(tmp_path):
    output = fresh_process.output_of(KILLED, tmp_path, 3)

    assert output.count("restored") == 3
