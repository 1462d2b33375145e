"""A refusal of a few bytes ends an op by ResourceExhausted, never the process.

Kind: std::bad_alloc that leaves a kernel, a loop of tasks or a thread ends the
process, and one that leaves a change half done bends a table. Looked for in: all
kernels (TFEMBED_KERNEL), ops that wait on a thread, the queue of steps, growing
indexes, lists of chunks, threads that write back files, tasks of a training step,
what makes kernels and shapes, meetings of replicas, the call of compiled programs.
Under `ulimit -v` TensorFlow's own threads end the process where they begin.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import fresh_process
from tfembed.ops import exchange

HERE = pathlib.Path(__file__).resolve().parent
COMPILER = shutil.which("g++") or shutil.which("c++")


def refusals(folder, mode, *operations):
    """How often each operation failed by a refused call of `new`, by name."""
    if COMPILER is None:
        pytest.skip("there is no C++ compiler to make refusals with")
    library = folder / "refused_new.so"
    compiled = [COMPILER, "-O1", "-std=c++17", "-shared", "-fPIC"]
    source = HERE / "refused_new.cc"
    subprocess.run([*compiled, "-o", library, source, "-ldl"], check=True)
    paths = [str(fresh_process.PACKAGE), str(fresh_process.TESTS)]
    result = subprocess.run(
        [
            sys.executable,
            HERE / "refused_operations.py",
            library,
            folder,
            mode,
            *operations,
        ],
        env=dict(
            os.environ,
            LD_PRELOAD=str(library),
            PYTHONPATH=os.pathsep.join(paths),
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, (result.returncode, result.stderr[-2000:])
    lines = (line.split() for line in result.stdout.splitlines())
    return {name: int(failed) for name, failed in lines}


@pytest.mark.slow
def test_a_refused_call_of_new_leaves_tables_as_they_were(tmp_path):
    operations = "upsert", "insert", "accum", "lookup", "export", "remove"
    failed = refusals(tmp_path, "one", *operations)
    assert set(failed) == set(operations) and min(failed.values()) > 0


STEPS = "update", "new_rows", "update_half", "update_moving", "evict_rows"


@pytest.mark.slow
def test_a_step_that_is_refused_memory_changes_nothing(tmp_path):
    failed = refusals(tmp_path, "one", *STEPS)
    assert set(failed) == set(STEPS) and min(failed.values()) > 0


@pytest.mark.slow
@pytest.mark.skipif(bool(exchange.why_missing()), reason=exchange.why_missing())
def test_a_compiled_step_that_is_refused_memory_changes_nothing(tmp_path):
    failed = refusals(tmp_path, "one", "update_compiled")
    assert failed["update_compiled"] > 0


@pytest.mark.slow
def test_files_are_written_and_read_within_memory(tmp_path):
    failed = refusals(tmp_path, "one", "save", "restore")
    assert failed["save"] > 0 and failed["restore"] > 0


@pytest.mark.slow
def test_a_refusal_of_what_is_made_once_ends_no_process(tmp_path):
    failed = refusals(tmp_path, "one", "trace", "meet")
    assert failed["trace"] > 0 and failed["meet"] > 0
