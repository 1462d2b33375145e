"""Interleaved medians: machines drift, so contenders take turns."""

from __future__ import annotations

import os
import pathlib
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def medians(
    contenders: Mapping[str, Callable[[int], object]],
    *,
    rounds: int,
    warm: int = 2,
) -> dict[str, float]:
    """Seconds of each contender, `steadied`; `contender(i)` runs round i."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(-warm, rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run(i + warm)
            if i >= 0:
                times[name].append(time.perf_counter() - start)
    return steadied(times)


def steadied(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Medians over rounds, each round's own speed divided out.

    A machine that others use, too, is four times slower in one round than in the
    next. That hits all contenders of a round about alike, so each time is
    first taken relative to the geometric mean of its round.

    Args:
      times: by contender, seconds of each round; as many of all.

    Returns:
      Seconds by contender, of a round of median speed.
    """
    speeds = [
        statistics.geometric_mean(of_round)
        for of_round in zip(*times.values(), strict=True)
    ]
    usual = statistics.median(speeds)
    return {
        name: usual
        * statistics.median(
            seconds / speed for seconds, speed in zip(t, speeds, strict=True)
        )
        for name, t in times.items()
    }


def seconds_of(run: Callable[[], Any], *, tells: bool) -> float:
    """Seconds that a run takes.

    Args:
      run: what it returns counts only if it `tells`.
      tells: whether it returns its seconds, as the limit's programs do, which
        measure parts of their work apart.
    """
    start = time.perf_counter()
    told = run()
    return told if tells else time.perf_counter() - start


def resident_bytes() -> int:
    """Resident set size of this process."""
    pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class PeakMemory:
    """The most resident memory while the block runs, beyond that at its start.

    Attributes:
      extra: bytes; known after the block.
    """

    def __enter__(self) -> PeakMemory:
        self.extra = 0
        self._before = resident_bytes()
        self._done = threading.Event()
        self._watch = threading.Thread(target=self._sample)
        self._watch.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._done.set()
        self._watch.join()

    def _sample(self) -> None:
        while not self._done.wait(0.005):
            self.extra = max(self.extra, resident_bytes() - self._before)


def set_threads(threads: int) -> None:
    """Gives TensorFlow this many threads, before its first op, and silence."""
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def reset_peak() -> None:
    """Lets `peak_bytes` count from what is resident now."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The largest resident set size since `reset_peak`."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


def huge_bytes() -> int:
    """Resident memory of this process on huge pages."""
    text = pathlib.Path("/proc/self/smaps_rollup").read_text()
    for line in text.splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return 0


def wait_for_huge_pages(most_seconds: float = 60) -> None:
    """Returns when no more memory moves to huge pages."""
    until = time.monotonic() + most_seconds
    last = -1
    while last != (now := huge_bytes()) and time.monotonic() < until:
        last = now
        time.sleep(0.3)
