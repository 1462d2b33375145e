#ifndef TFEMBED_CORE_SUPPORT_HAS_NAN_H_
#define TFEMBED_CORE_SUPPORT_HAS_NAN_H_

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cmath>
#include <cstdint>

namespace tfembed {

// Inline, since a call a row costs more than the rest of a narrow one.
inline bool HasNan(const float* row, int64_t dim) {
  int64_t c = 0;
  bool found = false;
#if defined(__SSE2__)
  __m128 unordered = _mm_setzero_ps();
  // One comparison tells of two numbers at once.
  for (; c + 8 <= dim; c += 8) {
    unordered = _mm_or_ps(
        unordered,
        _mm_cmpunord_ps(_mm_loadu_ps(row + c), _mm_loadu_ps(row + c + 4)));
  }
  for (; c + 4 <= dim; c += 4) {
    const __m128 four = _mm_loadu_ps(row + c);
    unordered = _mm_or_ps(unordered, _mm_cmpunord_ps(four, four));
  }
  found = _mm_movemask_ps(unordered) != 0;
#endif
  for (; c < dim; ++c) found |= std::isnan(row[c]);
  return found;
}

// Copies a row and says whether it has a NaN: half the instructions of one
// after the other, so that a processor sees more of the next row's misses.
inline bool CopyRowHasNan(const float* from, float* to, int64_t dim) {
  int64_t c = 0;
  bool found = false;
#if defined(__SSE2__)
  __m128 unordered = _mm_setzero_ps();
  for (; c + 8 <= dim; c += 8) {
    const __m128 a = _mm_loadu_ps(from + c);
    const __m128 b = _mm_loadu_ps(from + c + 4);
    unordered = _mm_or_ps(unordered, _mm_cmpunord_ps(a, b));
    _mm_storeu_ps(to + c, a);
    _mm_storeu_ps(to + c + 4, b);
  }
  found = _mm_movemask_ps(unordered) != 0;
#endif
  for (; c < dim; ++c) {
    found |= std::isnan(from[c]);
    to[c] = from[c];
  }
  return found;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_HAS_NAN_H_
