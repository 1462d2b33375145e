#ifndef TFEMBED_CORE_SUPPORT_ROW_COPY_H_
#define TFEMBED_CORE_SUPPORT_ROW_COPY_H_

#include <cstdint>

namespace tfembed {

// Rows have 4 to some hundred floats, a number known at run time only. There a
// call of memcpy costs as much as the copy; constant sizes become plain vector
// moves.
inline void CopyRow(const float* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) __builtin_memcpy(to + i, from + i, 64);
  if (n & 8) {
    __builtin_memcpy(to + i, from + i, 32);
    i += 8;
  }
  if (n & 4) {
    __builtin_memcpy(to + i, from + i, 16);
    i += 4;
  }
  for (; i < n; ++i) __builtin_memcpy(to + i, from + i, 4);
}

// The same for rows of other numbers.
inline void CopyBytes(const void* from, void* to, int64_t bytes) {
  if (bytes % 4 == 0) {
    CopyRow(static_cast<const float*>(from), static_cast<float*>(to),
            bytes / 4);
  } else {
    __builtin_memcpy(to, from, bytes);
  }
}

inline void AddRow(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

inline void FillRow(float value, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = value;
}

// Asks for the cache lines of `n` words. Beyond 2 KiB the processor's own
// prefetcher follows the copy.
template <bool kForWriting>
inline void PrefetchRow(const void* row, int64_t n) {
  const char* begin = static_cast<const char*>(row);
  const int64_t bytes = (n < 512 ? n : 512) * 4;
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(begin + i, kForWriting ? 1 : 0);
  }
  // The last line of a row that does not begin on one.
  __builtin_prefetch(begin + bytes - 1, kForWriting ? 1 : 0);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_ROW_COPY_H_
