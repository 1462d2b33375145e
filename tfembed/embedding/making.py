"""One thread at a time makes tables, whichever object's they are.

Not one lock for each object: objects with locks cannot be copied.
"""

from __future__ import annotations

import threading

__all__ = ["MAKING"]

MAKING = threading.RLock()
