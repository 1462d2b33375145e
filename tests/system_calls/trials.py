"""Tries operations with failing calls, in forks of one process.

Started with the library made of failing_calls.c in LD_PRELOAD. TensorFlow is
imported once, under that library. A process tries a part of an operation's calls
and ends: what it saved and loaded would slow it down more and more. Two run at a
time. Of each operation a JSON line is printed, with all that its parts found.

  trials.py LIBRARY FOLDER ERRORS WHICH OPERATION ...

The arguments are those of `operations.main`.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import fresh_process

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import operations
operations.main(*sys.argv[1:])
"""
TRIES_A_PROCESS = 150
PROCESSES = 2
LIMIT_SECS = 1800

Part = tuple[
    str, int
]  # An operation, and the first of the calls that are tried.


@dataclasses.dataclass
class Trials:
    """Processes that try parts of operations.

    Attributes:
      library: path of the library.
      root: folder in which each part gets one.
      errors: names of errno.
      which: as of `operations.main`.
    """

    library: str
    root: str
    errors: str
    which: str

    @property
    def size(self) -> int:
        """Calls of a part."""
        each = len(self.errors.split(",")) + 1 if self.which == "each" else 1
        return TRIES_A_PROCESS // each

    def start(self, part: Part) -> fresh_process.Program:
        name, begin = part
        return fresh_process.start(
            PROGRAM,
            self.library,
            pathlib.Path(self.root, f"{name}-{begin}"),
            self.errors,
            self.which,
            name,
            begin,
            begin + self.size,
        )

    def found(self, parts: Iterable[Part]) -> Iterator[dict[str, Any]]:
        """Yields the parts' answers in order, while the next part runs."""
        running: collections.deque[tuple[Part, fresh_process.Program]]
        running = collections.deque()
        for part in parts:
            running.append((part, self.start(part)))
            if len(running) == PROCESSES:
                yield answer(*running.popleft())
        while running:
            yield answer(*running.popleft())

    def of(self, name: str, first: dict[str, Any]) -> dict[str, Any]:
        """All that is found of an operation, given what its first part found."""
        parts = [first]
        while (begin := len(parts) * self.size) < (
            calls := max(part["calls"] for part in parts)
        ):
            others = [(name, n) for n in range(begin, calls, self.size)]
            parts += self.found(others)
        return {
            "name": name,
            "tries": sum(part["tries"] for part in parts),
            "errors": sum(part["errors"] for part in parts),
            "faults": [fault for part in parts for fault in part["faults"]],
        }


def answer(part: Part, process: fresh_process.Program) -> dict[str, Any]:
    """Returns a process's findings; AssertionError names the part that failed."""
    out, err = process.communicate(LIMIT_SECS)
    assert process.returncode == 0, (
        f"{part}: {process.returncode}\n{err[-4000:]}"
    )
    return json.loads(out.splitlines()[-1])


def main(library: str, root: str, errors: str, which: str, *names: str) -> None:
    trials = Trials(library, root, errors, which)
    firsts = list(trials.found([(name, 0) for name in names]))
    for name, first in zip(names, firsts, strict=True):
        print(json.dumps(trials.of(name, first)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
