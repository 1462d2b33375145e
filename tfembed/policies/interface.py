"""The interface of policies: what each tells the tables."""

from __future__ import annotations

import abc
import math
from typing import Any, ClassVar

from tfembed import checks, errors

__all__ = ["AdmissionPolicy", "EvictionPolicy"]


class AdmissionPolicy(abc.ABC):
    """When training may insert a key: after it was seen `seen` times.

    A description: immutable, used by any number of tables. A key is seen once by
    each training step that has a gradient for it. Until it is admitted it reads
    `value`, or without one its initial row, and trains nothing; `upsert` and
    `accum` insert it at once.

    Attributes:
      seen: the step in which a key is inserted and trained, from 1 on.
      value: what every key that is missing reads, in all columns; None: its
        initial row.
    """

    seen: int
    value: float | None

    @abc.abstractmethod
    def policy_text(self) -> str:
        """The policy as `cc/core/policies/admission.h` reads it."""


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


def check_value(value: Any) -> float | None:
    """`value` as a number; None stays None.

    Raises:
      tfembed.errors.ArgumentError: it is no finite number.
    """
    if value is None:
        return None
    number = checks.number(value)
    if number is None or not math.isfinite(number):
        raise errors.ArgumentError(
            f"`value` must be a finite number or None; got {value!r}."
        )
    return number
