"""Policies of hash tables, which are immutable descriptions.

Admission, eviction and expiry decide which keys are inserted and removed. The
arithmetic is in `cc/core/policies`, with a header for each policy.
`tfembed.simulate` runs policies without training.
"""

import importlib as _importlib

from tfembed.policies.admission import (
    AdmissionPolicy,
    BloomAdmission,
    CountAdmission,
)
from tfembed.policies.eviction import (
    EvictionPolicy,
    Expiry,
    LeastFrequent,
    LeastRecent,
    SmallestNorm,
)

__all__ = [
    "AdmissionPolicy",
    "BloomAdmission",
    "CountAdmission",
    "EvictionPolicy",
    "Expiry",
    "LeastFrequent",
    "LeastRecent",
    "SmallestNorm",
]


def __getattr__(name: str) -> object:
    """Returns `tfembed.simulate` by its first name."""
    if name == "simulate":
        return _importlib.import_module("tfembed").simulate
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), "simulate"})
