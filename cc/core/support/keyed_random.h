#ifndef TFEMBED_CORE_SUPPORT_KEYED_RANDOM_H_
#define TFEMBED_CORE_SUPPORT_KEYED_RANDOM_H_

#include <cstdint>

#include "cc/core/support/hash.h"

namespace tfembed {

// Random bits without state: a function of (seed, key) and of a counter.
// A SplitMix64 sequence (Steele, Lea, Flood 2014) whose start is the mix of
// seed and key, read at any place. Thread-safe.
class KeyedRandom {
 public:
  KeyedRandom(uint64_t seed, int64_t key)
      : start_(MixBits(MixBits(seed + kStep) ^
                       MixBits(static_cast<uint64_t>(key) ^ kKeySalt))) {}

  uint64_t Bits(uint64_t counter) const {
    return MixBits(start_ + (counter + 1) * kStep);
  }

  // In (0, 1), 2^52 values, the same distance from 0 as from 1.
  double Uniform(uint64_t counter) const {
    return (static_cast<double>(Bits(counter) >> 12) + 0.5) * 0x1p-52;
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15ULL;
  static constexpr uint64_t kKeySalt = 0x6a09e667f3bcc909ULL;  // sqrt(2)

  uint64_t start_;
};

// The standard normal distribution's quantile: the value that a share of
// `probability` in (0, 1) lies below. Relative error about 1e-16.
double NormalQuantile(double probability);

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_KEYED_RANDOM_H_
