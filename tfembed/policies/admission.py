"""Which keys tables take in: the interface of admission, and the policies."""

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


@dataclasses.dataclass(frozen=True)
class CountAdmission(AdmissionPolicy):
    """Inserts a key when training sees it for the `seen`-th time, exactly.

    Takes 17 to 22 bytes of memory for each key that waits, and some 45 more of
    a string. A key that was admitted, or upserted, and removed begins anew.
    Checkpoints save the counts.

    Raises:
      tfembed.errors.ArgumentError: `seen` is not in [1, 2**24], or `value` is
        no finite number.
    """

    seen: int
    value: float | None = None

    def __post_init__(self) -> None:
        seen = checks.integer(self.seen, "seen", least=1, most=2**24)
        object.__setattr__(self, "seen", seen)
        value = _check_value(self.value)
        object.__setattr__(self, "value", value)

    def policy_text(self) -> str:
        """The policy as `cc/core/policies/admission.h` reads it."""
        return f"count seen={self.seen}"


@dataclasses.dataclass(frozen=True)
class BloomAdmission(AdmissionPolicy):
    """Inserts a key when training sees it for the `seen`-th time, or earlier.

    Earlier with a probability of at most `error_rate`, as long as training has
    seen no more than `capacity` different keys; never later. The filter takes
    capacity * 2.08 * ln(1 / error_rate) bytes (9.6 a key for 1 %) at once and
    never grows. A key that was admitted and removed is admitted again at once.
    Checkpoints save the counters, for tables with as many shards, the same
    partitioner, capacity and error rate; elsewhere they begin anew.

    Attributes:
      capacity: different keys that training is expected to see, in all.
      error_rate: from 1e-6 to 0.5.

    Raises:
      tfembed.errors.ArgumentError: `seen` is not in [1, 255], or another value
        that is not allowed.
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
        """The policy as `cc/core/policies/admission.h` reads it."""
        return (
            f"bloom seen={self.seen} capacity={self.capacity} "
            f"error_rate={self.error_rate!r}"
        )


def as_admission(given: Any) -> Any:
    """A whole number n as `CountAdmission(n)`; anything else as it is.

    Raises:
      tfembed.errors.ArgumentError: the number is not in [1, 2**24].
    """
    number = checks.whole(given)
    return given if number is None else CountAdmission(number)


def _check_value(value: Any) -> float | None:
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
