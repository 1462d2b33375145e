#ifndef TFEMBED_CORE_SUPPORT_ROW_COPY_H_
#define TFEMBED_CORE_SUPPORT_ROW_COPY_H_

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstdint>
#include <type_traits>

#include "cc/core/support/prefetch.h"

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
  if (n & 2) {
    __builtin_memcpy(to + i, from + i, 8);
    i += 2;
  }
  if (n & 1) __builtin_memcpy(to + i, from + i, 4);
}

// Whole cache lines from `from` to `to`, past the caches: a line that is
// written as a whole need not be read first, which saves a third of the
// traffic. For batches that no cache would keep. Ends with StreamedRows.
// REQUIRES: `to` is at a multiple of 64 bytes and so is `bytes`.
inline void StreamRow(const void* from, void* to, int64_t bytes) {
#if defined(__SSE2__)
  const auto* in = static_cast<const __m128i*>(from);
  auto* out = static_cast<__m128i*>(to);
  for (int64_t i = 0; i < bytes / 16; i += 4) {
    const __m128i a = _mm_loadu_si128(in + i);
    const __m128i b = _mm_loadu_si128(in + i + 1);
    const __m128i c = _mm_loadu_si128(in + i + 2);
    const __m128i d = _mm_loadu_si128(in + i + 3);
    _mm_stream_si128(out + i, a);
    _mm_stream_si128(out + i + 1, b);
    _mm_stream_si128(out + i + 2, c);
    _mm_stream_si128(out + i + 3, d);
  }
#else
  __builtin_memcpy(to, from, bytes);
#endif
}

// Makes what StreamRow wrote visible to the threads that are told of it next.
inline void StreamedRows() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Whether a batch of so many bytes is to be streamed.
inline bool StreamsBatch(int64_t bytes) {
  return bytes >= int64_t{8} << 20;  // More than a core's own caches.
}

// Whether n rows of so many bytes are.
inline bool StreamsRows(int64_t bytes, int64_t n) {
  return bytes % kLineBytes == 0 && StreamsBatch(n * bytes);
}

// CopyRow for rows of other numbers.
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

// run(std::integral_constant<int64_t, bytes>) for rows of common sizes, else
// with 0, for which the size is to be looked up. Loops of a known length take
// fewer instructions, and the fewer there are the more keys a processor has
// under way at once.
template <typename Run>
inline void WithKnownBytes(int64_t bytes, Run run) {
  switch (bytes) {
    case 32:
      return run(std::integral_constant<int64_t, 32>());
    case 64:
      return run(std::integral_constant<int64_t, 64>());
    case 128:
      return run(std::integral_constant<int64_t, 128>());
    case 256:
      return run(std::integral_constant<int64_t, 256>());
    default:
      return run(std::integral_constant<int64_t, 0>());
  }
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_ROW_COPY_H_
