"""Repeat something and count the bytes that the process keeps for good."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import gc
import itertools
from collections.abc import Callable

from benchmarks.measure import resident_bytes

# More than this, and what is remembered once: hash tables of Python that grew,
# what threads keep of memory that they freed.
BYTES_A_REPETITION = 200
BYTES_AT_ALL = 24 << 10
RESIDENT_BYTES_AT_ALL = 6 << 20  # Pages come and go; leaks of tables are more.

_MOST_ROUNDS = 8
_numbers = itertools.count()  # What has a number's name was never met before.


@dataclasses.dataclass(frozen=True)
class Growth:
    """The growth of a process in one round of repetitions.

    Attributes:
      repetitions: in the round.
      allocated: bytes by which what malloc has given out grew.
      resident: bytes by which the process grew.
    """

    repetitions: int
    allocated: int
    resident: int

    @property
    def bytes_each(self) -> float:
        """Allocated bytes a repetition."""
        return self.allocated / self.repetitions

    def is_flat(
        self,
        beside: Growth | None = None,
        bytes_each: int = BYTES_A_REPETITION,
    ) -> bool:
        """Return True if no repetition kept anything.

        Args:
          beside: of the same done with TensorFlow alone, which may keep
            something, too.
          bytes_each: what a repetition may leave.
        """
        known = beside.bytes_each if beside else 0.0
        each = bytes_each + max(0.0, known)
        may = each * self.repetitions
        return (
            self.allocated <= may + BYTES_AT_ALL
            and self.resident <= may + RESIDENT_BYTES_AT_ALL
        )


def measure(
    repeat: Callable[[int], object],
    repetitions: int,
    beside: Growth | None = None,
    bytes_each: int = BYTES_A_REPETITION,
) -> Growth:
    """Calls `repeat` again and again and says what the last round of calls left.

    What threads and caches take at first comes to an end, what a repetition
    leaves does not: rounds go on until one is flat. Of none, the one that left
    the least.

    Args:
      repeat: what is repeated; its argument is another one each time.
      repetitions: calls in a round. The first round is not measured.
      beside, bytes_each: as of `Growth.is_flat`.
    """

    def call() -> None:
        for _ in range(repetitions):
            repeat(next(_numbers))

    call()
    _bytes()  # What looking takes when it is done first.
    before = _bytes()
    rounds: list[Growth] = []
    while len(rounds) < _MOST_ROUNDS:
        call()
        after = _bytes()
        grown = (now - then for now, then in zip(after, before, strict=True))
        rounds.append(Growth(repetitions, *grown))
        if rounds[-1].is_flat(beside, bytes_each):
            return rounds[-1]
        before = after
    return min(rounds, key=lambda one: one.allocated)


def kept_objects(
    repeat: Callable[[int], object], repetitions: int
) -> dict[str, float]:
    """Python's objects by type that a repetition leaves, the most first.

    Says where to look, once `measure` found that something is kept.
    """
    repeat(next(_numbers))
    _counted()  # What counting remembers when it is done first.
    before = _counted()
    for _ in range(repetitions):
        repeat(next(_numbers))
    grown = _counted() - before
    return {
        name: n / repetitions
        for name, n in grown.most_common(12)
        if n >= repetitions // 2
    }


def _counted() -> collections.Counter[str]:
    gc.collect()
    return collections.Counter(
        f"{type(one).__module__}.{type(one).__qualname__}"
        for one in gc.get_objects()
    )


class _Mallinfo(ctypes.Structure):
    """The struct that glibc's mallinfo2 returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _bytes() -> tuple[int, int]:
    """Return the bytes malloc has given out, in all threads, and those resident.

    Python's own memory is among the former under PYTHONMALLOC=malloc.
    """
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo
    for _ in range(2):  # What finalizers let go of, too.
        gc.collect()
    libc.malloc_trim(0)
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd), resident_bytes()
