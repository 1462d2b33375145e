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

  bool AreValid() const;
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
