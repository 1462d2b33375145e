#ifndef TFEMBED_CORE_SEALED_PERFECT_HASH_H_
#define TFEMBED_CORE_SEALED_PERFECT_HASH_H_

#include <cstdint>

#include "absl/types/span.h"

namespace tfembed {

// The sizes of a perfect hash, by which each key of a sealed table has a place
// of its own (docs/formats/sealed_table.md): all products are below 2^32.
struct PerfectHashSizes {
  int64_t regions = 1;  // A power of two.
  int64_t buckets = 1;  // Of a region.
  int64_t places = 1;   // Of a region.

  bool AreValid() const {
    return regions >= 1 && (regions & (regions - 1)) == 0 &&
           IsProductValid(regions, buckets) && IsProductValid(regions, places);
  }

 private:
  static bool IsProductValid(int64_t a, int64_t b) {
    constexpr int64_t kMost = int64_t{1} << 32;
    return a >= 1 && b >= 1 && a < kMost && b < kMost / a;
  }
};

// The buckets and places of keys' hashes. They are within all buckets and all
// places, whatever the hash and the pilot.
class KeyPlaces {
 public:
  // REQUIRES: sizes.AreValid().
  explicit KeyPlaces(const PerfectHashSizes& sizes)
      : buckets_(sizes.regions * sizes.buckets),
        places_(sizes.regions * sizes.places) {
    while ((int64_t{1} << region_bits_) < sizes.regions) ++region_bits_;
    top_ = (uint64_t{1} << 32) - (uint64_t{1} << (32 - region_bits_));
  }

  uint64_t BucketOf(uint64_t hash) const {
    return ((hash >> 32) * buckets_) >> 32;
  }

  uint64_t PlaceOf(uint64_t hash, uint64_t pilot) const {
    const uint64_t spread =
        ((hash ^ (pilot * kPilotFactor)) * kSpreadFactor) >> 32;
    const uint64_t at = ((hash >> 32) & top_) | (spread >> region_bits_);
    return (at * places_) >> 32;
  }

 private:
  static constexpr uint64_t kPilotFactor = 0x9e3779b97f4a7c15ULL;
  static constexpr uint64_t kSpreadFactor = 0xd6e8feb86659fd93ULL;

  uint64_t buckets_;  // Of all regions, as are the places.
  uint64_t places_;
  int region_bits_ = 0;
  uint64_t top_ = 0;  // The region's bits of the upper half of a hash.
};

enum class PilotSearch {
  kFound,
  kNotFound,     // Some bucket has no pilot: more places may help.
  kNotOfRegion,  // The hashes are no sorted, distinct hashes of the region.
};

// Finds the pilots of the buckets of a region: those by which no two of the
// hashes have one place. Buckets without a hash have pilot 0.
//
// hashes: MixBits of the region's keys, sorted. Takes six bytes a hash.
// pilots: one a bucket.
PilotSearch FindPilots(const PerfectHashSizes& sizes, int64_t region,
                       absl::Span<const uint64_t> hashes,
                       absl::Span<uint16_t> pilots);

}  // namespace tfembed

#endif  // TFEMBED_CORE_SEALED_PERFECT_HASH_H_
