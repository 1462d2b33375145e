"""The names of steps, the least recently used first: which to forget.

A layer that gives each of its steps a new name, as TensorFlow's may, would leave
a queue behind with each, for ever, and where steps are pipelined two of
TensorFlow's, which keeps what it made for every queue even when that is gone: so
those of old names serve new ones.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import tensorflow as tf

__all__ = ["RecentNames"]

_MOST = 64
_LOOKED_AT = 2  # Old names, for each new one: those that stay cost little.


class RecentNames:
    """The names that calls used, and those that calls use now.

    Args:
      forget: forgets what is kept for a name, or returns False where something
        is on its way under it, or a function may use it. Called eagerly, while no
        call uses the name.
    """

    def __init__(self, forget: Callable[[str], bool]) -> None:
        self._forget = forget
        self._users: dict[str, int] = {}  # Calls that run now.
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def using(self, name: str | None) -> Iterator[None]:
        """Keeps a name while a call uses it; may forget others before."""
        if name is None:  # The one that is always there.
            yield
            return
        with self._lock:
            is_new = name not in self._users
            self._users[name] = self._users.pop(name, 0) + 1
            if is_new and tf.executing_eagerly():
                self._forget_old()
        try:
            yield
        finally:
            with self._lock:
                self._users[name] -= 1

    def _forget_old(self) -> None:
        for _ in range(_LOOKED_AT):
            if len(self._users) <= _MOST:
                return
            oldest = next(iter(self._users))
            users = self._users.pop(oldest)
            if users or not self._forget(oldest):
                self._users[oldest] = (
                    users  # Looked at again, after all others.
                )
