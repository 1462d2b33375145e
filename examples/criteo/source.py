"""What examples come from: chunks of columns, each row with its position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tfembed.data.criteo import Chunk, Position


class Source(Protocol):
    """A click log that can be entered at any position."""

    def chunks(self, start: Position) -> Iterator[Chunk]:
        """The rows from `start` on, to train on. Raises tfembed.errors.DataError."""

    def held_out(self) -> Iterator[Chunk]:
        """Rows that `chunks` never gives, to evaluate with."""

    def describe(self, position: Position) -> str:
        """The position in words."""

    def fingerprint(self) -> str:
        """What must be the same for a position to mean the same."""
