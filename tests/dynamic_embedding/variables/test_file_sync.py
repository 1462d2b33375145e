"""A save of raw files waits for the disk before it goes on, call by call."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

import fresh_process

COMPILER = shutil.which("gcc") or shutil.which("cc")

# Writes down each fsync, sync_file_range and rename, and does it.
_RECORDER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void record(const char* call, const char* from, const char* to) {
  FILE* log = fopen(getenv("RECORDED_CALLS"), "a");
  fprintf(log, "%s %s %s\n", call, from, to);
  fclose(log);
}

static void record_file(const char* call, int file) {
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  ssize_t n = readlink(link, path, sizeof(path) - 1);
  path[n < 0 ? 0 : n] = 0;
  record(call, path, "-");
}

int sync_file_range(int file, off64_t begin, off64_t bytes, unsigned flags) {
  record_file("begin", file);
  return ((int (*)(int, off64_t, off64_t, unsigned))dlsym(
      RTLD_NEXT, "sync_file_range"))(file, begin, bytes, flags);
}

int fsync(int file) {
  record_file("fsync", file);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}

int rename(const char* from, const char* to) {
  record("rename", from, to);
  return ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename"))(from,
                                                                         to);
}
"""

_SAVE = """
import sys
import tfembed.dynamic_embedding as de
v = de.Variable(dim=2, name="v", devices=["/CPU:0"] * 2)
v.upsert(range(10), [[1.0, 2.0]] * 10)
v.save_to_file_system(sys.argv[1])
"""


# 128 MB of rows.
_LARGE_SAVE = """
import sys
import tensorflow as tf
import tfembed.dynamic_embedding as de
v = de.Variable(dim=64, name="v", devices=["/CPU:0"])
v.upsert(tf.range(500000, dtype=tf.int64), tf.ones([500000, 64]))
v.save_to_file_system(sys.argv[1])
"""


def _record(work, program):
    """(folder, calls) of a save by the program."""
    if COMPILER is None:
        pytest.skip("there is no C compiler to make the recorder with")
    source, library = work / "recorder.c", work / "recorder.so"
    log, folder = work / "calls", work / "rows"
    source.write_text(_RECORDER)
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-o", library, source, "-ldl"],
        check=True,
    )
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "RECORDED_CALLS": str(log),
        "PYTHONPATH": str(fresh_process.PACKAGE),
    }
    subprocess.run(
        [sys.executable, "-c", program, folder], check=True, env=environment
    )
    lines = [line.split(" ") for line in log.read_text().splitlines()]
    ours = [line for line in lines if line[1].startswith(str(folder))]
    return str(folder), ours


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """(folder, calls) of one save of two shards."""
    return _record(tmp_path_factory.mktemp("sync"), _SAVE)


def _renames(calls):
    return [i for i, (call, _, _) in enumerate(calls) if call == "rename"]


def test_what_is_renamed_is_on_the_disk_first(calls):
    folder, calls = calls
    renames = _renames(calls)

    assert len(renames) == 5  # The manifest, and two files of each shard.
    assert calls[renames[0]][2] == f"{folder}/.tfembed.v_mht_of2_rank0_size1"
    for place in renames:
        assert ["fsync", calls[place][1], "-"] in calls[: renames[0]]


def test_names_are_on_the_disk_before_and_after_the_manifest(calls):
    folder, calls = calls
    renames = _renames(calls)
    sync = ["fsync", folder, "-"]

    assert calls[renames[0] - 1] == sync
    assert calls[renames[0] + 1] == sync
    assert calls[-1] == sync


def test_the_disk_begins_with_a_large_file_before_it_is_whole(tmp_path):
    _, calls = _record(tmp_path, _LARGE_SAVE)
    begins = [i for i, (call, _, _) in enumerate(calls) if call == "begin"]

    assert begins
    path = calls[begins[0]][1]
    assert begins[-1] < calls.index(["fsync", path, "-"])


def test_small_files_are_not_begun_early(calls):
    assert "begin" not in [call for call, _, _ in calls[1]]
