"""Shows that a build goes on: how many steps are done, and how long it took.

pip hides what a build prints until it fails. So that a user who waits for
minutes sees why, lines go to the terminal too, where there is one.
"""

from __future__ import annotations

import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

# A clean build compiles for this many seconds on one core of Zen 4.
CPU_SECONDS = 310
BETWEEN_LINES = 15  # Seconds.
_STEPS = re.compile(r"^\[([\d,]+) / ([\d,]+)\]")
OPTIONS = (
    "--color=no",
    "--curses=no",
    f"--show_progress_rate_limit={BETWEEN_LINES}",
)


def minutes() -> int:
    """Returns about how many minutes a clean build takes on this machine now.

    Beside so many other processes that run, a build has its share of the cores.
    """
    cores = len(os.sched_getaffinity(0))
    share = cores / (cores + os.getloadavg()[0])
    return max(1, round(CPU_SECONDS / (cores * share) / 60))


def run(
    command: list[str],
    environment: dict[str, str],
    folder: os.PathLike[str],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Runs Bazel and shows its steps; raises CalledProcessError if it fails.

    While a long step goes on, a line says so: no output looks like a hang.
    """
    began = clock()
    steps = "no step"
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stderr is not None
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        reader = threading.Thread(
            target=_read, args=(process.stderr, lines), daemon=True
        )
        reader.start()
        while True:
            try:
                line = lines.get(timeout=2 * BETWEEN_LINES)
            except queue.Empty:
                say(f"{steps}, the next goes on{_after(clock() - began)}")
                continue
            if line is None:
                break
            if found := _STEPS.match(line):
                steps = "{} of {} known steps".format(*found.groups())
                say(f"{steps}{_after(clock() - began)}")
            else:
                sys.stderr.write(line)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _read(stream: TextIO, lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _after(seconds: float) -> str:
    return f" after {seconds:.0f} s"


def say(line: str) -> None:
    """Prints a line to stdout, and to the terminal where stdout is none."""
    for stream in _streams():
        print(f"tfembed: {line}", file=stream, flush=True)


def _streams() -> Iterator[TextIO]:
    yield sys.stdout
    if sys.stdout.isatty():
        return
    try:
        with pathlib.Path("/dev/tty").open("w") as terminal:
            yield terminal
    except OSError:
        return
