"""When rows expire by themselves."""

from __future__ import annotations

import dataclasses
import math
import numbers

from tfembed import errors
from tfembed.policies import interface

__all__ = ["Expiry"]


@dataclasses.dataclass(frozen=True)
class Expiry:
    """Has a table call `expire(limit)` after every `every` training steps.

    Attributes:
      limit: what `HashTable.expire` takes, by the table's eviction policy.
      every: training steps from one expiry to the next.

    Raises:
      tfembed.errors.ArgumentError: a value that is not allowed.
    """

    limit: float
    every: int

    def __post_init__(self) -> None:
        check_limit(self.limit)
        interface.whole_number(self.every, "every", least=1)


def check_limit(limit: object) -> None:
    """Raises ArgumentError where `limit` is no number from 0 on."""
    is_number = isinstance(limit, numbers.Real) and not isinstance(limit, bool)
    if not is_number or not 0 <= limit < math.inf:  # type: ignore[operator]
        raise errors.ArgumentError(
            f"`limit` must be a number from 0 on; got {limit!r}."
        )
