"""What a save of raw files has on the disk before it goes on, call by call."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

import fresh_process

COMPILER = shutil.which("gcc") or shutil.which("cc")

# Writes down each fsync and rename, and does it.
_RECORDER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void record(const char* call, const char* from, const char* to) {
  FILE* log = fopen(getenv("RECORDED_CALLS"), "a");
  fprintf(log, "%s %s %s\n", call, from, to);
  fclose(log);
}

int fsync(int file) {
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  ssize_t n = readlink(link, path, sizeof(path) - 1);
  path[n < 0 ? 0 : n] = 0;
  record("fsync", path, "-");
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


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """(folder, calls) of one save of two shards."""
    if COMPILER is None:
        pytest.skip("there is no C compiler to make the recorder with")
    work = tmp_path_factory.mktemp("sync")
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
        [sys.executable, "-c", _SAVE, folder], check=True, env=environment
    )
    lines = [line.split(" ") for line in log.read_text().splitlines()]
    ours = [line for line in lines if line[1].startswith(str(folder))]
    return str(folder), ours


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
