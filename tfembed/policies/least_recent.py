"""Eviction of rows that were not touched for long."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tfembed import errors
from tfembed.policies import interface

__all__ = ["LeastRecent"]


@dataclasses.dataclass(frozen=True)
class LeastRecent(interface.EvictionPolicy):
    """The rows that were not touched for the longest time go first.

    Takes 4 bytes a row. Time is counted in steps, the batches of writes to the
    table (a training step, an `upsert`, an `accum`), or in seconds.

    Attributes:
      clock: "steps" or "seconds".

    Raises:
      tfembed.errors.ArgumentError: another clock.
    """

    limit_is_age: ClassVar[bool] = True

    clock: str = "steps"

    def __post_init__(self) -> None:
        if self.clock not in ("steps", "seconds"):
            raise errors.ArgumentError(
                f"`clock` must be 'steps' or 'seconds'; got {self.clock!r}."
            )

    def policy_text(self) -> str:
        """The policy as `cc/core/policies/eviction.h` reads it."""
        return f"least_recent seconds={int(self.clock == 'seconds')}"
