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
as ops (`tfembed/export/stock_lookup.py`).
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt

from tfembed import errors

__all__ = ["PILOT_FACTOR", "SPREAD_FACTOR", "PerfectHash", "mix"]

_Words = npt.NDArray[np.uint64]

PILOT_FACTOR = 0x9E3779B97F4A7C15
SPREAD_FACTOR = 0xD6E8FEB86659FD93
MIX_FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)

_KEYS_A_REGION = 1 << 16
_KEYS_A_BUCKET = 3.0
# The share of places with a key; a region that cannot be built at the first
# share is built with more free places.
_FILLS = (0.98, 0.9, 0.7, 0.5)
_PILOTS = 1 << 16


def mix(keys: npt.NDArray[np.int64]) -> _Words:
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
    def of(cls, keys: npt.NDArray[np.int64]) -> PerfectHash:
        """Finds a perfect hash of distinct keys.

        Raises:
          tfembed.errors.ArgumentError: two keys are equal.
        """
        hashes = np.sort(mix(keys))
        if len(hashes) > 1 and (hashes[1:] == hashes[:-1]).any():
            raise errors.ArgumentError(
                f"{len(keys)} keys must be distinct; some of them are equal."
            )
        regions = 1
        while regions * _KEYS_A_REGION < len(keys):
            regions *= 2
        for fill in _FILLS:
            built = cls._built(hashes, regions, fill)
            if built is not None:
                return built
        raise errors.ArgumentError(
            f"No perfect hash of {len(keys)} keys was found. Please report it."
        )

    @classmethod
    def _built(
        cls, hashes: _Words, regions: int, fill: float
    ) -> PerfectHash | None:
        """Builds all regions of sorted hashes; None where one has no hash."""
        step = (1 << 64) // regions
        begins = np.array([i * step for i in range(regions)], np.uint64)
        ends = [*np.searchsorted(hashes, begins).tolist(), len(hashes)]
        most = max(end - begin for begin, end in itertools.pairwise(ends))
        most = max(1, most)
        buckets = int(most / _KEYS_A_BUCKET) + 1
        places = int(most / fill) + 2
        found = cls(
            regions, buckets, places, np.zeros(regions * buckets, np.uint16)
        )
        for region in range(regions):
            mine = hashes[ends[region] : ends[region + 1]]
            if not found._build_region(mine, region):
                return None
        return found

    @property
    def num_places(self) -> int:
        """The number of places of all regions together."""
        return self.regions * self.places

    def places_of(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the place of each key; for a key that is not there, any."""
        hashes = mix(keys)
        pilots = self.pilots[self._buckets_of(hashes)].astype(np.uint64)
        return self._places(hashes, pilots)

    def _buckets_of(self, hashes: _Words) -> npt.NDArray[np.int64]:
        count = np.uint64(self.regions * self.buckets)
        buckets = (hashes >> np.uint64(32)) * count >> np.uint64(32)
        return buckets.astype(np.int64)

    def _places(self, hashes: _Words, pilots: _Words) -> npt.NDArray[np.int64]:
        spread = hashes ^ (pilots * np.uint64(PILOT_FACTOR))
        at = spread * np.uint64(SPREAD_FACTOR) >> np.uint64(32)
        if self.regions > 1:
            bits = self.regions.bit_length() - 1
            kept = np.uint64((1 << 32) - (1 << (32 - bits)))
            at = (hashes >> np.uint64(32)) & kept | at >> np.uint64(bits)
        places = at * np.uint64(self.num_places) >> np.uint64(32)
        return places.astype(np.int64)

    def _build_region(self, hashes: _Words, region: int) -> bool:
        """Finds the pilots of a region's buckets, large buckets first."""
        buckets = self._buckets_of(hashes)  # Sorted, as the hashes are.
        numbers, begins, sizes = np.unique(
            buckets, return_index=True, return_counts=True
        )
        used = np.zeros(self.places, bool)
        for size in range(int(sizes.max(initial=0)), 0, -1):
            alike = sizes == size
            members = begins[alike, None] + np.arange(size)
            if not self._place(numbers[alike], hashes[members], region, used):
                return False
        return True

    def _place(
        self,
        buckets: npt.NDArray[np.int64],
        hashes: _Words,
        region: int,
        used: npt.NDArray[np.bool_],
    ) -> bool:
        """Places buckets of one size; whether all have a pilot.

        Args:
          buckets: the numbers of the buckets.
          hashes: [len(buckets), size].
          region: the number of the region.
          used: the region's places that have a key, which is updated.
        """
        owners = np.zeros(self.places, np.int64)
        for pilot in range(_PILOTS):
            if not len(buckets):
                return True
            at = self._places(hashes, np.full(1, pilot, np.uint64))
            at -= region * self.places
            fits = ~used[at].any(axis=1)
            ordered = np.sort(at, axis=1)
            fits &= (ordered[:, 1:] != ordered[:, :-1]).all(axis=1)
            # Of two buckets that want one place, the latter has it.
            candidates = np.flatnonzero(fits)
            wanted = at[candidates]
            owners[wanted] = candidates[:, None]
            wins = (owners[wanted] == candidates[:, None]).all(axis=1)
            winners = candidates[wins]
            used[at[winners]] = True
            self.pilots[buckets[winners]] = pilot
            stays = np.ones(len(buckets), bool)
            stays[winners] = False
            buckets, hashes = buckets[stays], hashes[stays]
        return not len(buckets)
