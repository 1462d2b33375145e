"""What memory a test may use."""

from __future__ import annotations

import pathlib


def available_bytes() -> int:
    """What the system could hand out now, as Linux estimates it."""
    for line in pathlib.Path("/proc/meminfo").read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0
