"""A perfect hash of integers: each of n keys has a place of its own.

Keys are hashed once, by `mix`, and then displaced: about three keys share a
bucket, each bucket has a number, its pilot, and the pilot decides where the
bucket's keys lie. Keys are dealt to regions of at most some 64K keys, which
are built one by one.

    hash    = mix(key)                                      one to one
    bucket  = (hash >> 32) * (regions * buckets) >> 32
    spread  = ((hash ^ pilot[bucket] * K1) * K2) >> 32
    region  = the top log2(regions) bits of the hash
    place   = (region's bits | spread >> log2(regions))
              * (regions * places) >> 32

All is multiplication, exclusive or and shift of 64 bits, which TensorFlow has
as ops (`tfembed/export/stock_lookup.py`). The pilots are found by an op of
ours (cc/core/sealed/perfect_hash.h).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from tfembed import errors
from tfembed.ops import checkpoint as checkpoint_ops

__all__ = ["PILOT_FACTOR", "SPREAD_FACTOR", "PerfectHash", "Words", "mix"]

Words = npt.NDArray[np.uint64]

PILOT_FACTOR = 0x9E3779B97F4A7C15
SPREAD_FACTOR = 0xD6E8FEB86659FD93
MIX_FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)

_KEYS_A_REGION = 1 << 16
_KEYS_A_BUCKET = 3.0
# The share of places with a key; a region that cannot be built at the first
# share is built with more free places.
_FILLS = (0.98, 0.9, 0.7, 0.5)
# The hashes of one call of the op, which takes a copy of them.
_KEYS_A_CALL = 1 << 21


def mix(keys: npt.NDArray[np.int64]) -> Words:
    """Mixes all bits, one to one: `MixBits` of cc/core/support/hash.h."""
    bits = keys.view(np.uint64).copy()
    for factor in MIX_FACTORS:
        bits ^= bits >> np.uint64(33)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(33)
    return bits


@dataclasses.dataclass(frozen=True)
class PerfectHash:
    """The place of each key.

    Attributes:
      regions: the number of regions, a power of two.
      buckets: the number of buckets of a region.
      places: the number of places of a region, at least its number of keys.
      pilots: uint16 [regions * buckets], the number of each bucket.
    """

    regions: int
    buckets: int
    places: int
    pilots: npt.NDArray[np.uint16]

    @classmethod
    def of(cls, hashes: Words) -> PerfectHash:
        """Finds a perfect hash of distinct keys.

        Args:
          hashes: `mix` of the keys, which this sorts in place.

        Raises:
          tfembed.errors.ArgumentError: two keys are equal.
        """
        hashes.sort()
        for first in range(0, len(hashes), _KEYS_A_CALL):
            some = hashes[first : first + _KEYS_A_CALL + 1]
            if (some[1:] == some[:-1]).any():
                raise errors.ArgumentError(
                    f"{len(hashes)} keys must be distinct; some of them are "
                    "equal."
                )
        regions = 1
        while regions * _KEYS_A_REGION < len(hashes):
            regions *= 2
        for fill in _FILLS:
            built = cls._built(hashes, regions, fill)
            if built is not None:
                return built
        raise errors.ArgumentError(
            f"No perfect hash of {len(hashes)} keys was found. Please report it."
        )

    @classmethod
    def _built(
        cls, hashes: Words, regions: int, fill: float
    ) -> PerfectHash | None:
        """Builds all regions of sorted hashes; None where one has no hash."""
        step = (1 << 64) // regions
        begins = np.array([i * step for i in range(regions)], np.uint64)
        splits = np.append(np.searchsorted(hashes, begins), len(hashes))
        most = max(1, int(np.diff(splits).max()))
        found = cls(
            regions=regions,
            buckets=int(most / _KEYS_A_BUCKET) + 1,
            places=int(most / fill) + 2,
            pilots=np.zeros(0, np.uint16),
        )
        pilots = []
        together = max(1, _KEYS_A_CALL // most)
        for first in range(0, regions, together):
            cuts = splits[first : first + together + 1]
            some = checkpoint_ops.perfect_hash(
                hashes[cuts[0] : cuts[-1]].view(np.int64),
                cuts - cuts[0],
                first,
                regions=regions,
                buckets=found.buckets,
                places=found.places,
            )
            if some is None:
                return None
            pilots.append(some)
        return dataclasses.replace(found, pilots=np.concatenate(pilots))

    @property
    def num_places(self) -> int:
        """The number of places of all regions together."""
        return self.regions * self.places

    def places_of(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the place of each key; for a key that is not there, any."""
        hashes = mix(keys)
        count = np.uint64(self.regions * self.buckets)
        buckets = (hashes >> np.uint64(32)) * count >> np.uint64(32)
        pilots = self.pilots[buckets.astype(np.int64)].astype(np.uint64)
        spread = hashes ^ (pilots * np.uint64(PILOT_FACTOR))
        at = spread * np.uint64(SPREAD_FACTOR) >> np.uint64(32)
        if self.regions > 1:
            bits = self.regions.bit_length() - 1
            kept = np.uint64((1 << 32) - (1 << (32 - bits)))
            at = (hashes >> np.uint64(32)) & kept | at >> np.uint64(bits)
        places = at * np.uint64(self.num_places) >> np.uint64(32)
        return places.astype(np.int64)
