"""Collects the errors of several threads, and raises the one that matters."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import tensorflow as tf

# Errors that follow from another error: raised only if there is no other.
_FOLLOW_UPS = (tf.errors.CancelledError,)
# A MonitoredSession recovers from these by a new session.
_RECOVERED = (tf.errors.AbortedError, tf.errors.UnavailableError)
_CLOSE_AFTER_SECS = 5

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class ErrorRendezvous:
    """Collects the errors of the main thread, the infeed and the outfeed.

    When the input fails, the other threads are only cancelled. The user should
    read the cause, and not the error of the thread that fails first. So all
    threads record their errors here, and `raise_errors` raises the cause.
    Methods may be called from any thread.
    """

    def __init__(self, num_sources: int) -> None:
        self._num_sources = num_sources
        self._lock = threading.Lock()
        self._errors: dict[str, ExcInfo | None] = {}
        self._closing: threading.Thread | None = None

    def record_error(
        self, source: str, exc_info: Any, session: Any = None
    ) -> None:
        """Records an error of `source`.

        AbortedError and UnavailableError are not recorded: a session recovers
        from them.

        Args:
          source: the name of the thread, for instance "infeed".
          exc_info: the value of `sys.exc_info()`.
          session: the session to close after some seconds, so that the other
            threads end; until then they may still record their own errors.
        """
        error = exc_info[1]
        if isinstance(error, _RECOVERED):
            return
        with self._lock:
            self._errors[source] = exc_info
            # A failed CheckNumerics comes after the loop's last step: the
            # other threads end by themselves.
            op = getattr(error, "op", None)
            if getattr(op, "type", None) == "CheckNumerics":
                return
            if session is None or self._closing is not None:
                return
            self._closing = threading.Thread(
                target=_close_later, args=(session, error), daemon=True
            )
            self._closing.start()

    def record_done(self, source: str) -> None:
        """Records that `source` ended; keeps an error recorded before."""
        with self._lock:
            self._errors.setdefault(source, None)

    @contextlib.contextmanager
    def catch_errors(self, source: str, session: Any = None) -> Iterator[None]:
        """Records an error of the block as one of `source`; suppresses it."""
        try:
            yield
        except Exception:
            self.record_error(source, sys.exc_info(), session)

    def raise_errors(self, timeout_sec: float = 0) -> None:
        """Raises the error that explains the others, if there is an error.

        Args:
          timeout_sec: how long to wait for sources that have not ended.
        """
        until = time.monotonic() + timeout_sec
        while time.monotonic() < until and self._running():
            time.sleep(0.1)
        with self._lock:
            noted = [info for info in self._errors.values() if info]
        causes = [i for i in noted if not isinstance(i[1], _FOLLOW_UPS)]
        for _, error, traceback in causes + noted:
            raise error.with_traceback(traceback)

    def _running(self) -> bool:
        with self._lock:
            return len(self._errors) < self._num_sources


def _close_later(session: Any, error: BaseException) -> None:
    time.sleep(_CLOSE_AFTER_SECS)
    tf.compat.v1.logging.error("The session is closed for: %s", error)
    try:
        session.close()
    except Exception:
        tf.compat.v1.logging.exception("The session could not be closed.")
