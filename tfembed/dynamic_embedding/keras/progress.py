"""Lines on stderr that say how far a copy of rows is, if it takes long."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["tell_progress"]

_T = TypeVar("_T")

_PAUSE = 5.0  # Seconds, as of the lines of checkpoints' ops.


def tell_progress(what: str, parts: Sequence[_T]) -> Iterator[_T]:
    """Gives the parts of some work one by one, and says how many are done.

    The first line comes after five seconds, and one every five seconds from then
    on. TFEMBED_PROGRESS_SECONDS in the environment is another pause, less than 0
    for no lines; TF_CPP_MIN_LOG_LEVEL=1 hides them, as those of TensorFlow's log.

    Args:
      what: as in "Writing the rows of 'users' into the file".
      parts: of about one size.
    """
    pause = _pause()
    begin = last = time.monotonic()
    for done, part in enumerate(parts):
        now = time.monotonic()
        if done and 0 <= pause <= now - last:
            last = now
            left = (now - begin) * (len(parts) - done) / done
            _say(
                f"{what}: {100 * done // len(parts)} %, some {left:.0f} s left"
            )
        yield part
    if last > begin:
        _say(f"{what}: done in {time.monotonic() - begin:.1f} s")


def _pause() -> float:
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") != "0":
        return -1.0
    try:
        return float(os.environ.get("TFEMBED_PROGRESS_SECONDS", _PAUSE))
    except ValueError:
        return _PAUSE


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
