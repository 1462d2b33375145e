"""Shows that a build goes on: how many steps are done, and how long it took.

pip hides what a build prints until it fails. So that a user who waits for
minutes sees why, lines go to the terminal too, where there is one.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
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
    """Returns about how many minutes a clean build takes on this machine."""
    cores = len(os.sched_getaffinity(0))
    return max(1, round(CPU_SECONDS / cores / 60))


def run(
    command: list[str], environment: dict[str, str], folder: os.PathLike[str]
) -> None:
    """Runs Bazel and shows its steps; raises CalledProcessError if it fails."""
    began = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if not (steps := _STEPS.match(line)):
                sys.stderr.write(line)
                continue
            done, known = steps.groups()
            say(
                f"{done} of {known} known steps after"
                f" {time.monotonic() - began:.0f} s"
            )
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


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
