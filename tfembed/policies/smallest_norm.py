"""Eviction of rows that hold little."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tfembed.policies import interface

__all__ = ["SmallestNorm"]


@dataclasses.dataclass(frozen=True)
class SmallestNorm(interface.EvictionPolicy):
    """The rows of the smallest Euclidean norm go first, those with a NaN before.

    Takes no memory, and rows of any dtype; of booleans it is that of zeros and
    ones. Slots do not count.
    """

    limit_is_age: ClassVar[bool] = False

    def policy_text(self) -> str:
        """The policy as `cc/core/policies/eviction.h` reads it."""
        return "smallest_norm"
