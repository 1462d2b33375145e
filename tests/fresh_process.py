"""Runs Python programs in processes of their own.

A program begins in a fork of a process that has imported TensorFlow and run
nothing: the import takes four seconds, a fork none. Nothing of the tests' own
process is in it. A program whose subject is the import, an environment that
TensorFlow reads then, or page faults, asks for `new_interpreter=True`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
import types

TESTS = pathlib.Path(__file__).resolve().parent
# The same tfembed as this process has, installed or not. It is not imported: a
# program may need a process without it.
PACKAGE = pathlib.Path(importlib.util.find_spec("tfembed").origin).parents[1]
LIMIT_SECS = 300


def context():
    """Returns the multiprocessing context whose processes are such forks."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["tensorflow"])
    return forks


class Program:
    """A program that runs, or has ended; a part of what Popen has.

    Args:
      text: the program.
      arguments: its sys.argv[1:].
    """

    def __init__(self, text, arguments):
        self._folder = tempfile.TemporaryDirectory()
        self._outputs = [
            pathlib.Path(self._folder.name, name) for name in ("out", "err")
        ]
        for path in self._outputs:
            path.touch()
        self._process = context().Process(
            target=_run,
            args=(
                textwrap.dedent(text),
                arguments,
                _environment(),
                self._outputs,
            ),
            daemon=True,
        )
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def kill(self):
        self._process.kill()

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout=LIMIT_SECS):
        """Returns the status; a program that does not end is killed."""
        self._process.join(timeout)
        if self.poll() is None:
            self.kill()
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.poll()

    def printed(self):
        """Returns the output and the errors until now."""
        return tuple(path.read_text() for path in self._outputs)

    def wait_for_output(self, text, timeout=LIMIT_SECS):
        """Waits until the program has printed a text."""
        deadline = time.monotonic() + timeout
        while text not in self.printed()[0]:
            assert self.poll() is None, self.printed()
            assert time.monotonic() < deadline, text
            time.sleep(0.02)

    def communicate(self, timeout=LIMIT_SECS):
        """Returns the output and the errors, once the program has ended."""
        self.wait(timeout)
        printed = self.printed()
        self._folder.cleanup()
        return printed


def start(program: str, *arguments: object) -> Program:
    """Starts a program given as text, its arguments in sys.argv[1:]."""
    return Program(program, list(map(str, arguments)))


def run(
    program: str, *arguments: object, new_interpreter: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; what it prints is in the result."""
    if new_interpreter:
        return subprocess.run(
            [
                sys.executable,
                "-c",
                textwrap.dedent(program),
                *map(str, arguments),
            ],
            env=_environment(),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=LIMIT_SECS,
        )
    process = start(program, *arguments)
    out, err = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def output_of(
    program: str, *arguments: object, new_interpreter: bool = False
) -> str:
    """Returns a program's output, or raises AssertionError if it fails."""
    result = run(program, *arguments, new_interpreter=new_interpreter)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


def _environment() -> dict[str, str]:
    paths = [str(PACKAGE), str(TESTS), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def _run(program, arguments, environment, outputs):
    """Runs a program as `python -c` does, to the end of the interpreter."""
    for descriptor, path in zip((1, 2), outputs, strict=True):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    sys.argv = ["-c", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir("/")
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    status = 0
    try:
        exec(compile(program, "<string>", "exec"), main.__dict__)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else end.code is not None
        if status is True:
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    # A process of multiprocessing would leave without the interpreter's end.
    ctypes.pythonapi.Py_Exit(int(status))
