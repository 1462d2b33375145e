#ifndef TFEMBED_CORE_ROWS_ROW_LAYOUT_H_
#define TFEMBED_CORE_ROWS_ROW_LAYOUT_H_

#include <algorithm>
#include <cstdint>

#include "cc/core/rows/row_addresses.h"
#include "cc/core/rows/value_type.h"

namespace tfembed {

// How a row lies in memory, in words of 4 bytes:
//
//   +---------------------------+-------------------+------+
//   | value                     | slots             | meta |
//   | dim numbers of `type`,    | each dim floats,  |      |
//   | padded to whole words,    | or one float      |      |
//   | at least one              |                   |      |
//   +---------------------------+-------------------+------+
//   0                           slots_begin()       meta_begin()   width()
//
// Meta words belong to whoever asked for them; a new row has zeros there.
struct RowLayout {
  int64_t dim = 0;
  ValueType type;
  int64_t num_slots = 0;
  int64_t meta_words = 0;
  SlotSet row_wise = 0;  // The slots of one float a row.

  static constexpr int64_t kWordBytes = 4;

  int64_t value_bytes() const { return dim * type.size(); }
  int64_t slots_begin() const {
    return std::max<int64_t>(1, (value_bytes() + kWordBytes - 1) / kWordBytes);
  }
  int64_t slot_width(int64_t slot) const {
    return SlotWidth(row_wise, slot, dim);
  }
  int64_t slot_begin(int64_t slot) const {
    int64_t begin = slots_begin();
    for (int64_t s = 0; s < slot; ++s) begin += slot_width(s);
    return begin;
  }
  int64_t meta_begin() const { return slot_begin(num_slots); }
  // The words of all slots together.
  int64_t slot_words() const { return meta_begin() - slots_begin(); }
  int64_t width() const { return meta_begin() + meta_words; }
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_ROWS_ROW_LAYOUT_H_
