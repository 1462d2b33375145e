"""Eviction policies, which decide what rows a table removes first."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

from tfembed import errors

__all__ = ["EvictionPolicy", "LeastFrequent", "LeastRecent", "SmallestNorm"]


class EvictionPolicy(abc.ABC):
    """Decides which rows a table removes first.

    A description: immutable, for any number of tables. Inserting, writing or
    training a row touches it; reading does not.
    """

    # Whether rows above the limit of `expire` are removed, or those below it.
    limit_is_age: ClassVar[bool]

    @abc.abstractmethod
    def policy_text(self) -> str:
        """Returns the policy as `cc/core/policies/eviction.h` parses it."""


@dataclasses.dataclass(frozen=True)
class LeastFrequent(EvictionPolicy):
    """Removes the rows that were touched least often first.

    Takes 4 bytes per row. A training step and a batch of `upsert` or `accum`
    touch a row once, even if its key comes several times.
    """

    limit_is_age: ClassVar[bool] = False

    def policy_text(self) -> str:
        """Returns the policy as `cc/core/policies/eviction.h` parses it."""
        return "least_frequent"


@dataclasses.dataclass(frozen=True)
class LeastRecent(EvictionPolicy):
    """Removes the rows that were not touched for the longest time first.

    Takes 4 bytes per row. Time is counted in steps, the batches of writes to
    the table (a training step, an `upsert`, an `accum`), or in seconds.

    Attributes:
      clock: "steps" or "seconds".

    Raises:
      tfembed.errors.ArgumentError: the clock is neither.
    """

    limit_is_age: ClassVar[bool] = True

    clock: str = "steps"

    def __post_init__(self) -> None:
        if self.clock not in ("steps", "seconds"):
            raise errors.ArgumentError(
                f"`clock` must be 'steps' or 'seconds'; got {self.clock!r}."
            )

    def policy_text(self) -> str:
        """Returns the policy as `cc/core/policies/eviction.h` parses it."""
        return f"least_recent seconds={int(self.clock == 'seconds')}"


@dataclasses.dataclass(frozen=True)
class SmallestNorm(EvictionPolicy):
    """Removes the rows of the smallest Euclidean norm first, after NaN rows.

    Takes no memory, and supports rows of any dtype; booleans count as 0 and 1.
    Slots do not count.
    """

    limit_is_age: ClassVar[bool] = False

    def policy_text(self) -> str:
        """Returns the policy as `cc/core/policies/eviction.h` parses it."""
        return "smallest_norm"
