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
  for (; c + 4 <= dim; c += 4) {
    const __m128 four = _mm_loadu_ps(row + c);
    unordered = _mm_or_ps(unordered, _mm_cmpunord_ps(four, four));
  }
  found = _mm_movemask_ps(unordered) != 0;
#endif
  for (; c < dim; ++c) found |= std::isnan(row[c]);
  return found;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_HAS_NAN_H_
