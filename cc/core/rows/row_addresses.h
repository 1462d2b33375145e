#ifndef TFEMBED_CORE_ROWS_ROW_ADDRESSES_H_
#define TFEMBED_CORE_ROWS_ROW_ADDRESSES_H_

#include <cstdint>

#include "absl/base/attributes.h"

// Addresses of rows. cc/core/simd includes this header too: simd/vector.h says
// why there is little in this header, and little that it includes.
namespace tfembed {

// Finds the rows of a RowStore by number; small enough for registers.
struct RowAddresses {
  float* const* slabs = nullptr;
  int64_t width = 0;  // In words of 4 bytes.
  int shift = 0;
  uint32_t mask = 0;

  ABSL_ATTRIBUTE_ALWAYS_INLINE float* Row(uint32_t row) const {
    return slabs[row >> shift] + (row & mask) * width;
  }
};

// The most slots that an update rule keeps beside a row.
inline constexpr int kMaxSlots = 4;

// Some of a rule's slots: bit s stands for slot s.
using SlotSet = unsigned;

// The floats that a slot keeps of a row of `dim`: one where it is row-wise.
static inline long SlotWidth(SlotSet row_wise, long slot, long dim) {
  return (row_wise >> slot & 1) != 0 ? 1 : dim;
}

// A row and its slots, each `dim` floats or one, ready to be written. Where a
// table's rows are narrower (RowSink::rounding) `value` is where its numbers
// lie.
struct MutableRow {
  float* value = nullptr;
  float* slots[kMaxSlots] = {};
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_ROWS_ROW_ADDRESSES_H_
