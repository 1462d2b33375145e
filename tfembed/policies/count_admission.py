"""Admission by an exact count."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfembed import checks
from tfembed.policies import interface

__all__ = ["CountAdmission", "as_admission"]


@dataclasses.dataclass(frozen=True)
class CountAdmission(interface.AdmissionPolicy):
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
        value = interface.check_value(self.value)
        object.__setattr__(self, "value", value)

    def policy_text(self) -> str:
        """The policy as `cc/core/policies/admission.h` reads it."""
        return f"count seen={self.seen}"


def as_admission(given: Any) -> Any:
    """A whole number n as `CountAdmission(n)`; anything else as it is.

    Raises:
      tfembed.errors.ArgumentError: the number is not in [1, 2**24].
    """
    number = checks.whole(given)
    return given if number is None else CountAdmission(number)
