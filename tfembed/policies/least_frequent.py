"""Eviction of rows that are seldom touched."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tfembed.policies import interface

__all__ = ["LeastFrequent"]


@dataclasses.dataclass(frozen=True)
class LeastFrequent(interface.EvictionPolicy):
    """The rows that were touched least often go first.

    Takes 4 bytes a row. A training step and a batch of `upsert` or `accum` touch
    a row once, however often its key comes.
    """

    limit_is_age: ClassVar[bool] = False

    def policy_text(self) -> str:
        """The policy as `cc/core/policies/eviction.h` reads it."""
        return "least_frequent"
