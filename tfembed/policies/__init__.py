"""Which keys a hash table takes in, and which ones go: frozen descriptions.

The arithmetic is in `cc/core/policies`, one file each of the same name.
`simulate` runs policies dry.
"""

import importlib as _importlib

from tfembed.policies.bloom_admission import BloomAdmission
from tfembed.policies.count_admission import CountAdmission
from tfembed.policies.expiry import Expiry
from tfembed.policies.interface import AdmissionPolicy, EvictionPolicy
from tfembed.policies.least_frequent import LeastFrequent
from tfembed.policies.least_recent import LeastRecent
from tfembed.policies.smallest_norm import SmallestNorm

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
    """Imports `simulate`, which needs tables, on first use."""
    if name == "simulate":
        room = _importlib.import_module("tfembed.inspection.simulation")
        return room.simulate
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), "simulate"})
