#ifndef TFEMBED_CORE_SUPPORT_HASH_H_
#define TFEMBED_CORE_SUPPORT_HASH_H_

#include <cstdint>

#include "absl/base/attributes.h"

namespace tfembed {

inline constexpr uint64_t kMixFactors[] = {0xff51afd7ed558ccdULL,
                                           0xc4ceb9fe1a85ec53ULL};

// Mixes all bits of `bits`, one to one: equal results mean equal inputs.
// (The finalizer of MurmurHash3. Identity or multiplication alone lets keys
// such as i << 20 or field << 48 | i pile up: 1,000 times slower tables.)
// All here is always inline, so that cc/core/simd may use it.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline uint64_t MixBits(uint64_t bits) {
  bits ^= bits >> 33;
  bits *= kMixFactors[0];
  bits ^= bits >> 33;
  bits *= kMixFactors[1];
  bits ^= bits >> 33;
  return bits;
}

// A key's hash; equal hashes mean equal keys.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline uint64_t HashKey(int64_t key) {
  return MixBits(static_cast<uint64_t>(key));
}

// A table's keys are dealt to kNumStripes stripes by the top bits of the hash.
// (32: ThreadSanitizer follows at most 64 locks of a thread, and a reader holds
// a lock per stripe; and from 4M keys on a stripe's index fills huge pages.)
inline constexpr int kStripeBits = 5;
inline constexpr int kNumStripes = 1 << kStripeBits;

ABSL_ATTRIBUTE_ALWAYS_INLINE inline int StripeOf(uint64_t hash) {
  return static_cast<int>(hash >> (64 - kStripeBits));
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_HASH_H_
