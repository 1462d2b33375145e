#ifndef TFEMBED_CORE_ROWS_MUTABLE_ROW_H_
#define TFEMBED_CORE_ROWS_MUTABLE_ROW_H_

namespace tfembed {

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
// lie. By itself in a header without includes, for the SIMD files
// (simd/vector.h says why).
struct MutableRow {
  float* value = nullptr;
  float* slots[kMaxSlots] = {};
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_ROWS_MUTABLE_ROW_H_
