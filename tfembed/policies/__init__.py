"""Which keys a hash table takes in, and which ones go: frozen descriptions.

The arithmetic is in `cc/core/policies`, one file each of the same name.
"""

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
