"""Which rows go when some have to: the interface of eviction, and the policies."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

from tfembed import errors

__all__ = ["EvictionPolicy", "LeastFrequent", "LeastRecent", "SmallestNorm"]


class EvictionPolicy(abc.ABC):
    """Which rows go first when some have to.

    A description: immutable, used by any number of tables. A row is touched when
    it is inserted, written or trained; reading it does not touch it.
    """

    # Whether the rows that go are those above the limit, or below it.
    limit_is_age: ClassVar[bool]

    @abc.abstractmethod
    def policy_text(self) -> str:
        """The policy as `cc/core/policies/eviction.h` reads it."""


@dataclasses.dataclass(frozen=True)
class LeastFrequent(EvictionPolicy):
    """The rows that were touched least often go first.

    Takes 4 bytes a row. A training step and a batch of `upsert` or `accum` touch
    a row once, however often its key comes.
    """

    limit_is_age: ClassVar[bool] = False

    def policy_text(self) -> str:
        """The policy as `cc/core/policies/eviction.h` reads it."""
        return "least_frequent"


@dataclasses.dataclass(frozen=True)
class LeastRecent(EvictionPolicy):
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


@dataclasses.dataclass(frozen=True)
class SmallestNorm(EvictionPolicy):
    """The rows of the smallest Euclidean norm go first, those with a NaN before.

    Takes no memory, and rows of any dtype; of booleans it is that of zeros and
    ones. Slots do not count.
    """

    limit_is_age: ClassVar[bool] = False

    def policy_text(self) -> str:
        """The policy as `cc/core/policies/eviction.h` reads it."""
        return "smallest_norm"
