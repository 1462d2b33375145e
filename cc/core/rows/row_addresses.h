#ifndef TFEMBED_CORE_ROWS_ROW_ADDRESSES_H_
#define TFEMBED_CORE_ROWS_ROW_ADDRESSES_H_

#include <cstdint>

#include "absl/base/attributes.h"

namespace tfembed {

// Where the rows of a RowStore are, for loops to keep in registers; in
// cc/core/simd, too.
struct RowAddresses {
  float* const* slabs = nullptr;
  int64_t width = 0;  // In words of 4 bytes.
  int shift = 0;
  uint32_t mask = 0;

  ABSL_ATTRIBUTE_ALWAYS_INLINE float* Row(uint32_t row) const {
    return slabs[row >> shift] + (row & mask) * width;
  }
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_ROWS_ROW_ADDRESSES_H_
