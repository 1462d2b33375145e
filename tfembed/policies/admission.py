"""Admission policies, which decide what keys a table inserts."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any

from tfembed import checks, errors

__all__ = [
    "AdmissionPolicy",
    "BloomAdmission",
    "CountAdmission",
    "as_admission",
]


class AdmissionPolicy(abc.ABC):
    """Lets training insert a key once it has seen the key `seen` times.

    A description: immutable, for any number of tables. A training step with a
    gradient for a key sees the key once. Until the key is admitted, its lookup
    returns `value`, or without one its initial row, and training skips it;
    `upsert` and `accum` insert it at once.

    Attributes:
      seen: the number of the step, from 1, that inserts and trains a key.
      value: the number in all columns of a missing key's lookup; None: its
        initial row.
    """

    seen: int
    value: float | None

    @abc.abstractmethod
    def policy_text(self) -> str:
        """Returns the policy as `cc/core/policies/admission.h` parses it."""


@dataclasses.dataclass(frozen=True)
class CountAdmission(AdmissionPolicy):
    """Inserts a key when training sees it for the `seen`-th time, exactly.

    Takes 17 to 22 bytes of memory for each waiting key, and about 45 more for
    a string. The count of a key that was inserted and then removed starts
    again. Checkpoints save the counts.

    Raises:
      tfembed.errors.ArgumentError: `seen` is not in [1, 2**24], or `value` is
        not a finite number.
    """

    seen: int
    value: float | None = None

    def __post_init__(self) -> None:
        seen = checks.integer(self.seen, "seen", least=1, most=2**24)
        object.__setattr__(self, "seen", seen)
        value = _check_value(self.value)
        object.__setattr__(self, "value", value)

    def policy_text(self) -> str:
        """Returns the policy as `cc/core/policies/admission.h` parses it."""
        return f"count seen={self.seen}"


@dataclasses.dataclass(frozen=True)
class BloomAdmission(AdmissionPolicy):
    """Inserts a key when training sees it for the `seen`-th time, or earlier.

    The probability of "earlier" is at most `error_rate`, as long as training
    has seen at most `capacity` different keys; a key is never late. The filter
    takes capacity * 2.08 * ln(1 / error_rate) bytes (9.6 per key for 1 %) from
    the start and never grows. A key that was inserted and removed is admitted
    again at once. Checkpoints save the counters for tables with the same
    number of shards, partitioner, capacity and error rate; for other tables
    they start again.

    Attributes:
      capacity: the number of different keys that training is expected to see.
      error_rate: a number from 1e-6 to 0.5.

    Raises:
      tfembed.errors.ArgumentError: `seen` is not in [1, 255], or another value
        is not allowed.
    """

    seen: int
    capacity: int
    error_rate: float = 0.01
    value: float | None = None

    def __post_init__(self) -> None:
        for name, most in (("seen", 255), ("capacity", 10**11)):
            given = getattr(self, name)
            count = checks.integer(given, name, least=1, most=most)
            object.__setattr__(self, name, count)
        rate = checks.number(self.error_rate)
        if rate is None or not 1e-6 <= rate <= 0.5:
            raise errors.ArgumentError(
                f"`error_rate` must be in [1e-6, 0.5]; got {self.error_rate!r}."
            )
        object.__setattr__(self, "error_rate", rate)
        value = _check_value(self.value)
        object.__setattr__(self, "value", value)

    def policy_text(self) -> str:
        """Returns the policy as `cc/core/policies/admission.h` parses it."""
        return (
            f"bloom seen={self.seen} capacity={self.capacity} "
            f"error_rate={self.error_rate!r}"
        )


def as_admission(given: Any) -> Any:
    """Converts an integer n to `CountAdmission(n)`; returns others unchanged.

    Raises:
      tfembed.errors.ArgumentError: the number is not in [1, 2**24].
    """
    number = checks.whole(given)
    return given if number is None else CountAdmission(number)


def _check_value(value: Any) -> float | None:
    """Converts `value` to a float; None stays None.

    Raises:
      tfembed.errors.ArgumentError: `value` is not a finite number.
    """
    if value is None:
        return None
    number = checks.number(value)
    if number is None or not math.isfinite(number):
        raise errors.ArgumentError(
            f"`value` must be a finite number or None; got {value!r}."
        )
    return number
