#ifndef TFEMBED_CORE_SUPPORT_HASH_BYTES_H_
#define TFEMBED_CORE_SUPPORT_HASH_BYTES_H_

#include <cstdint>
#include <cstring>

#include "absl/strings/string_view.h"
#include "cc/core/support/hash.h"

namespace tfembed {

// A 64-bit hash of a string: the same in every process and version, since
// initial rows depend on it.
inline uint64_t HashBytes(absl::string_view text) {
  uint64_t hash = 0x9e3779b97f4a7c15ULL + text.size();
  const char* at = text.data();
  size_t left = text.size();
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    hash = MixBits(hash ^ word) + word;
  }
  if (left > 0) {
    uint64_t word = 0;
    std::memcpy(&word, at, left);
    hash = MixBits(hash ^ word) + word;
  }
  return MixBits(hash);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_HASH_BYTES_H_
