"""Waits until Python has deleted an object, and says what keeps it if not."""

from __future__ import annotations

import gc
import time
import weakref
from types import FrameType
from typing import Any

_TRIES = 5
_LONGEST_CHAIN = 12


def holders(reference: weakref.ref[Any]) -> list[str]:
    """Returns what keeps an object, from its holder on; nothing if it is gone.

    One collection may be no collection: `gc.collect` returns at once while
    another thread collects, and a finalizer may let go of more.
    """
    for _ in range(_TRIES):
        gc.collect()
        if reference() is None:
            return []
        time.sleep(0.05)
    return _chain(reference())


def _chain(kept: object) -> list[str]:
    names = []
    seen = {id(names)}
    while len(names) < _LONGEST_CHAIN:
        seen.add(id(kept))
        referrers = gc.get_referrers(kept)
        seen.add(id(referrers))
        others = [
            x
            for x in referrers
            if id(x) not in seen and not isinstance(x, FrameType)
        ]
        if not others:
            break
        kept = others[0]
        names.append(f"{type(kept).__name__}: {str(kept)[:100]}")
    return names or ["nothing that the collector sees"]
