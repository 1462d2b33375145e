"""Bad lines that a reader passed over."""

from __future__ import annotations

import dataclasses

from tfembed.errors import DataError

_KEPT = 5


@dataclasses.dataclass
class SkippedLines:
    """How many bad lines a reader passed over, and what the first ones were.

    Attributes:
      count: how many lines.
      first: what was wrong with the first five, each with its path and line.
    """

    count: int = 0
    first: list[str] = dataclasses.field(default_factory=list)

    def add(self, error: DataError) -> None:
        """Counts one more."""
        self.count += 1
        if len(self.first) < _KEPT:
            self.first.append(str(error))
