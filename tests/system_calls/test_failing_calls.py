"""Every system call of every save, export, load and restore fails once.

The tests look for work that is undone, or half done, after an error that came too
late, and for files that are taken for absent because a call failed: in raw files,
checkpoints of both kinds, SavedModels, warm starts, Keras' files and `verify`.
HYPOTHESIS_PROFILE=full tries every error at each call, all calls after it too, and
larger models.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import fresh_process

HERE = pathlib.Path(__file__).resolve().parent
COMPILER = shutil.which("gcc") or shutil.which("cc")
ERRORS = "EIO,ENOSPC,EACCES,EMFILE"
FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
# Small ones, tried together.
QUICK = (
    "raw_saves",
    "raw_appends",
    "raw_loads",
    "small_saves",
    "small_restores",
    "graph_restores",
)
OTHERS = (
    "raw_saves_of_two_sets",
    "dealt_raw_loads",
    "raw_loads_in_functions",
    "checkpoint_saves",
    "checkpoint_restores",
    "large_restores",
    "verifications",
    "exports",
    "graph_saves",
    "warm_starts",
    "keras_loads",
)


def tried(folder: pathlib.Path, *operations: str) -> dict:
    """The line that each operation's trial printed, by name."""
    if COMPILER is None:
        pytest.skip("there is no C compiler to make failing calls with")
    library = folder / "failing_calls.so"
    source = HERE / "failing_calls.c"
    compiled = [COMPILER, "-shared", "-fPIC", "-o", library, source, "-ldl"]
    subprocess.run(compiled, check=True)
    paths = [str(fresh_process.PACKAGE), str(fresh_process.TESTS)]
    which = "each" if FULL else "one"
    program = [sys.executable, HERE / "trials.py", library, folder]
    result = subprocess.run(
        [*program, ERRORS, which, *operations],
        env={
            **os.environ,
            "LD_PRELOAD": str(library),
            "PYTHONPATH": os.pathsep.join(paths),
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["name"] for line in lines] == list(operations)
    return {line["name"]: line for line in lines}


def assert_whole(trial: dict) -> None:
    """Calls failed, errors were seen, and nothing was broken by them."""
    assert trial["tries"] > 20
    assert trial["errors"] > trial["tries"] // 4
    assert trial["faults"] == []


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return tried(tmp_path_factory.mktemp("calls"), *QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("operation", QUICK)
def test_no_failing_call_leaves_anything_half_done(quick, operation):
    assert_whole(quick[operation])


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="HYPOTHESIS_PROFILE=full tries it")
@pytest.mark.parametrize("operation", OTHERS)
def test_no_failing_call_leaves_a_larger_thing_half_done(tmp_path, operation):
    assert_whole(tried(tmp_path, operation)[operation])
