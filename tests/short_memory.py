"""Telling a machine that is short of memory from a fault of tfembed's."""

from __future__ import annotations

import re

_REFUSED = re.compile(r"of memory, of which (\d+) are available")
_SHORT = 256 << 20  # Where a test needs more, it asks for too much.


def refusal(error: BaseException | None) -> str | None:
    """The memory that the machine lacked, as a table's error says, or None.

    Looks through what the error was raised from, and through groups: Hypothesis
    tries a failing example again, and where other programs gave memory back
    meanwhile it calls the test flaky, whatever happened first.
    """
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        found = _REFUSED.search(str(one))
        if found and int(found.group(1)) < _SHORT:
            return str(one)
        waiting += [one.__cause__, one.__context__]
        waiting += getattr(one, "exceptions", ())
    return None
