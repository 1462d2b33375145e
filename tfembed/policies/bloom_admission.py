"""Admission by a counting Bloom filter."""

from __future__ import annotations

import dataclasses

from tfembed import checks, errors
from tfembed.policies import interface

__all__ = ["BloomAdmission"]


@dataclasses.dataclass(frozen=True)
class BloomAdmission(interface.AdmissionPolicy):
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
        value = interface.check_value(self.value)
        object.__setattr__(self, "value", value)

    def policy_text(self) -> str:
        """The policy as `cc/core/policies/admission.h` reads it."""
        return (
            f"bloom seen={self.seen} capacity={self.capacity} "
            f"error_rate={self.error_rate!r}"
        )
