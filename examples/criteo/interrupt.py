"""Ctrl-C as a question that the training asks, not as a blow."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C was pressed; a second press ends the process at once."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def watched(self) -> Iterator[Interrupt]:
        """Listens during the `with`."""
        before = signal.signal(signal.SIGINT, self._note)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
