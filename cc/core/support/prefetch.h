#ifndef TFEMBED_CORE_SUPPORT_PREFETCH_H_
#define TFEMBED_CORE_SUPPORT_PREFETCH_H_

#include <cstdint>

#include "absl/base/attributes.h"

// Asking the memory for what is read later. All of it is always inline: GCC
// takes out calls of a function that only prefetches, and cc/core/simd may use
// it so.
namespace tfembed {

inline constexpr int64_t kLineBytes = 64;  // A cache line.

// So many words of a row are asked for: beyond 2 KiB the processor's own
// prefetcher follows the copy.
inline constexpr int64_t kMostWordsAsked = 512;

// Asks for the cache lines of `n` words, or of the first kMostWordsAsked. Into
// the second cache: more lines can be under way to it than to the first, which
// is then near enough.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void PrefetchRow(const void* row,
                                                     int64_t n) {
  const int64_t bytes = (n < kMostWordsAsked ? n : kMostWordsAsked) * 4;
  const auto* const begin = static_cast<const char*>(row);
  for (int64_t at = 0; at < bytes; at += kLineBytes) {
    __builtin_prefetch(begin + at, /*rw=*/0, /*locality=*/2);
  }
  // A row that does not begin at a line may end in one more.
  const int64_t in_line = reinterpret_cast<uintptr_t>(row) % kLineBytes;
  if (in_line + (bytes - 1) % kLineBytes >= kLineBytes) {
    __builtin_prefetch(begin + bytes - 1, /*rw=*/0, /*locality=*/2);
  }
}

// Asks for ids or keys [begin, end), which are read a block at a time: what a
// processor follows by itself comes too late then.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void PrefetchIds(const int64_t* ids,
                                                     int64_t begin,
                                                     int64_t end) {
  constexpr int64_t kLineIds = kLineBytes / sizeof(int64_t);
  for (int64_t i = begin; i < end; i += kLineIds) __builtin_prefetch(ids + i);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_PREFETCH_H_
