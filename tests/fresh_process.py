"""Runs Python programs in processes of their own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

import tfembed

TESTS = pathlib.Path(__file__).resolve().parent
# The same tfembed as this process has, installed or not.
PACKAGE = pathlib.Path(tfembed.__file__).parents[1]


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Starts a program given as text, its arguments in sys.argv[1:]."""
    paths = [str(PACKAGE), str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        env=environment,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; what it prints is in the result."""
    process = start(program, *arguments)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(
        process.args, process.returncode, out, err
    )


def output_of(program: str, *arguments: object) -> str:
    """Returns a program's output, or raises AssertionError if it fails."""
    result = run(program, *arguments)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout
