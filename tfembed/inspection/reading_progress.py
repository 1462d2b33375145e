"""Prints the progress of a command that reads large files."""

from __future__ import annotations

import os
import pathlib
import sys
import threading
import time
from types import TracebackType

from tfembed.units import as_bytes

__all__ = ["ReadingProgress"]

_PAUSE = 5.0  # Seconds; the same as for the lines of saves.
_COUNTERS = pathlib.Path("/proc/self/io")


class ReadingProgress:
    """Writes a line on stderr every five seconds, while it is entered.

    A line gives the number of bytes that the process has read. If stderr is
    not a terminal, no line is written. TFEMBED_PROGRESS_SECONDS in the
    environment sets another interval; a value below 0 turns the lines off.
    """

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        pause = _pause()
        if pause >= 0 and sys.stderr is not None and sys.stderr.isatty():
            self._thread = threading.Thread(
                target=self._tell, args=(max(pause, 0.01),), daemon=True
            )
            self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _tell(self, pause: float) -> None:
        begin, before = time.monotonic(), _bytes_read()
        while not self._is_over.wait(pause):
            seconds = time.monotonic() - begin
            size = as_bytes(_bytes_read() - before)
            sys.stderr.write(f"tfembed: {size} read in {seconds:.0f} s\n")


def _pause() -> float:
    try:
        return float(os.environ.get("TFEMBED_PROGRESS_SECONDS", _PAUSE))
    except ValueError:
        return _PAUSE


def _bytes_read() -> int:
    """Returns the bytes that this process has read, from files and others."""
    try:
        name, _, count = _COUNTERS.read_text().split("\n")[0].partition(": ")
    except OSError:  # Not Linux, or /proc is hidden.
        return 0
    return int(count) if name == "rchar" else 0
